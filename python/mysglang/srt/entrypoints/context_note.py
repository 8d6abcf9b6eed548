"""ContextNote: what several middlewares share that note something of a request for all that is done for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextvars import ContextVar
from typing import ClassVar, Generic, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

Note = TypeVar("Note")


class ContextNote(ABC, Generic[Note]):
    """Middleware: what a request does from here on, in its own task and those that it begins, finds its note in
    `variable`.
    """

    variable: ClassVar[ContextVar]  # type: ignore[type-arg]  # of Note, which a class's own field cannot say

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @abstractmethod
    def note(self, scope: Scope) -> Note:
        """The note of a request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = self.variable.set(self.note(scope))
        try:
            await self._app(scope, receive, send)
        finally:
            self.variable.reset(token)
