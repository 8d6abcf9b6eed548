"""HttpActivity: the middleware that counts HTTP requests and their answers. There with --enable-metrics only."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.context_notes import ROUTING_KEY
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.managers.request_metrics import RequestMetrics
from mysglang.srt.observability.instruments import MODEL_ROUTES


class HttpActivity:
    """Middleware that reports the beginning and the end of each POST to a route of the model to `metrics`.

    A path that is no route is not counted, so that clients cannot make up labels.
    """

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in MODEL_ROUTES:
            await self._app(scope, receive, send)
            return
        path, routing_key = scope["path"], header(scope, ROUTING_KEY)
        status: int | None = None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.asked(path, routing_key)
        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.answered(path, routing_key, status)
