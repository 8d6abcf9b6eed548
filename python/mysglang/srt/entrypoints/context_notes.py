"""ContextNotes: facts about a request that all code working for it can read without being handed them.

Each is the value of a context variable: the request's caller, and its trace. They are made after its key was checked
(`entrance.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import ClassVar, Generic, TypeVar

from starlette.types import Scope

from mysglang.srt.entrypoints.headers import header
from mysglang.srt.entrypoints.owner import is_admin, owner_of
from mysglang.srt.managers.caller import CALLER, TRACE_PARENT, Caller

Note = TypeVar("Note")


class ContextNote(ABC, Generic[Note]):
    """The note of a request, which becomes the value of the context variable `variable`. The task that handles the
    request, and every task that it starts, can read the note there.
    """

    variable: ClassVar[ContextVar]  # type: ignore[type-arg]  # of Note, which a class's own field cannot say

    @abstractmethod
    def note(self, scope: Scope) -> Note:
        """Returns the note of a request."""


ROUTING_KEY = b"x-smg-routing-key"
"""The header in which SGLang's gateway says what a request belongs to."""


class Callers(ContextNote[Caller]):
    """Makes the Caller available to all code that works for the request."""

    variable = CALLER

    def note(self, scope: Scope) -> Caller:
        return _caller(owner_of(scope), header(scope, ROUTING_KEY), is_admin(scope))


@lru_cache(1024)
def _caller(api_key: str, routing_key: str, admin: bool) -> Caller:
    return Caller(api_key=api_key, routing_key=routing_key, remote=True, admin=admin)


HEADERS = (b"traceparent", b"tracestate")


class TraceParents(ContextNote[Mapping[str, str]]):
    """Makes the trace of the request's caller available to all code that works for the request."""

    variable = TRACE_PARENT

    def note(self, scope: Scope) -> Mapping[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
