"""ErrorShapes: which paths speak another dialect than OpenAI's when something goes wrong, whoever finds that out."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.error_responses import OPENAI_SHAPE, ErrorShape, speak


class ErrorShapes:
    """Middleware: names the shape for all that is inside of it. A path speaks the dialect of a prefix of it, cut at a
    slash.
    """

    def __init__(self, app: ASGIApp, shapes: Mapping[str, ErrorShape]) -> None:
        self._app = app
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            speak(scope, shape_of(route_path(scope), self._shapes))
        await self._app(scope, receive, send)


def shape_of(path: str, shapes: Mapping[str, ErrorShape]) -> ErrorShape:
    """What `path` speaks."""
    found = (shape for prefix, shape in shapes.items() if path == prefix or path.startswith(prefix + "/"))
    return next(found, OPENAI_SHAPE)
