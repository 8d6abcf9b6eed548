"""Callers: the middleware that records the caller of each request. It runs after the one that checks keys."""

from __future__ import annotations

from functools import lru_cache

from starlette.types import Scope

from mysglang.srt.entrypoints.context_note import ContextNote
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.entrypoints.owner import is_admin, owner_of
from mysglang.srt.managers.caller import CALLER, Caller

ROUTING_KEY = b"x-smg-routing-key"
"""The header in which SGLang's gateway says what a request belongs to."""


class Callers(ContextNote[Caller]):
    """Middleware that makes the Caller available to all code that works for the request."""

    variable = CALLER

    def note(self, scope: Scope) -> Caller:
        return _caller(owner_of(scope), header(scope, ROUTING_KEY), is_admin(scope))


@lru_cache(1024)
def _caller(api_key: str, routing_key: str, admin: bool) -> Caller:
    return Caller(api_key=api_key, routing_key=routing_key, remote=True, admin=admin)
