"""A name for every HTTP request: the client's own, or ours, in the `x-request-id` header of every response, and in
`request-id`, where Anthropic's clients look.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.headers import header
from mysglang.srt.utils.ids import new_id

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"

_NAMES = (HEADER.encode(), ANTHROPIC_HEADER.encode())
_KEY = "mysglang.request_id"

# Characters that are safe in a header and in a log line.
_ACCEPTABLE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id_of(scope: Scope) -> str:
    """Returns the id of the request that `scope` belongs to, given on first asking."""
    known: str | None = scope.get(_KEY)
    if known is None:
        given = header(scope, _NAMES[0])
        known = scope[_KEY] = given if _ACCEPTABLE.fullmatch(given) else new_id()
    return known


class RequestId:
    """Middleware: puts the id on every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                value = request_id.encode()
                others = [(name, held) for name, held in message.get("headers", ()) if name not in _NAMES]
                message = {**message, "headers": [*others, *((name, value) for name in _NAMES)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
