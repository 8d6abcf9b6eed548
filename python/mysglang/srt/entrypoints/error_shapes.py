"""ErrorShapes: the form of an error by the path of the request, whichever part reports the error."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.error_responses import NATIVE_SHAPE, ErrorShape, speak


class ErrorShapes:
    """Middleware that chooses the form of errors by path: the first prefix in `shapes` decides, cut at a slash."""

    def __init__(self, app: ASGIApp, shapes: Mapping[str, ErrorShape]) -> None:
        self._app = app
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            speak(scope, shape_of(route_path(scope), self._shapes))
        await self._app(scope, receive, send)


def shape_of(path: str, shapes: Mapping[str, ErrorShape]) -> ErrorShape:
    """Returns the shape of errors under `path`: the native one where no prefix fits."""
    found = (shape for prefix, shape in shapes.items() if path == prefix or path.startswith(prefix + "/"))
    return next(found, NATIVE_SHAPE)
