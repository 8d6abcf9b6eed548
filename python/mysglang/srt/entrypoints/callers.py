"""Callers: the middleware that notes who asks, behind the one that knows keys."""

from __future__ import annotations

from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import owner_of
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.managers.caller import CALLER, Caller

ROUTING_KEY = b"x-smg-routing-key"
"""The header in which SGLang's gateway says what a request belongs to."""


class Callers:
    """Middleware: what a request does from here on, in its own task and those that it begins, has its Caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = CALLER.set(_caller(owner_of(scope), header(scope, ROUTING_KEY)))
        try:
            await self._app(scope, receive, send)
        finally:
            CALLER.reset(token)


@lru_cache(1024)
def _caller(api_key: str, routing_key: str) -> Caller:
    return Caller(api_key=api_key, routing_key=routing_key, remote=True)
