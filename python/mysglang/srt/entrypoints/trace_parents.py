"""TraceParents: the middleware that notes to which trace a request belongs. There with --enable-trace only."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.managers.trace_parent import TRACE_PARENT

HEADERS = (b"traceparent", b"tracestate")


class TraceParents:
    """Middleware: what a request does from here on knows its caller's trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
        token = TRACE_PARENT.set(carrier)
        try:
            await self._app(scope, receive, send)
        finally:
            TRACE_PARENT.reset(token)
