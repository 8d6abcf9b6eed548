"""ErrorShapes: which paths speak another dialect than OpenAI's when something goes wrong, whoever finds that out."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.error_responses import ErrorShape, speak


class ErrorShapes:
    """Middleware: names the shape for all that is inside of it. A path speaks the dialect of a prefix of it, cut at a
    slash.
    """

    def __init__(self, app: ASGIApp, shapes: Mapping[str, ErrorShape]) -> None:
        self._app = app
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = route_path(scope)
            for prefix, shape in self._shapes.items():
                if path == prefix or path.startswith(prefix + "/"):
                    speak(scope, shape)
        await self._app(scope, receive, send)
