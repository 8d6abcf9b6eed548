"""No request whose headers are larger than anything honest: 431, before any of them is read."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.error_responses import ErrorFacts, error_response

MAX_HEADER_BYTES = 64 << 10
"""Names and values together."""


class HeaderLimit:
    """Middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES
        ):
            facts = ErrorFacts(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes.")
            await error_response(facts, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
