"""A path speaks the dialect of its prefix, cut at a slash, below whatever root a proxy shows."""

import orjson
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from mysglang.srt.entrypoints.error_responses import ErrorFacts, error_frame, error_response
from mysglang.srt.entrypoints.error_shapes import ErrorShapes
from mysglang.srt.entrypoints.routes.dialects import SHAPES

FACTS = ErrorFacts(429, "Busy.")


async def told(path: str, root: str = "") -> tuple[dict[str, object], bytes]:
    """The body of an answer and the frame of a stream, for an error under `path`."""
    found = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found["frame"] = error_frame(FACTS, scope)
        await error_response(FACTS, scope)(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        found["body"] = message.get("body", b"")

    scope: Scope = {"type": "http", "method": "GET", "path": root + path, "root_path": root, "headers": []}
    await ErrorShapes(app, SHAPES)(Request(scope).scope, receive, send)
    return orjson.loads(found["body"]), found["frame"]


@pytest.mark.parametrize("root", ["", "/proxy"])
async def test_dialects(root: str) -> None:
    body, frame = await told("/v1/messages", root)
    assert body["error"] == {"type": "rate_limit_error", "message": "Busy."}
    assert frame.startswith(b"event: error\ndata: {")
    body, frame = await told("/api/nothing", root)
    assert body["error"] == "Busy."
    assert orjson.loads(frame)["error"] == "Busy."


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages_of_others", "/apis", "/"])
async def test_everybody_else(path: str) -> None:
    body, frame = await told(path)
    assert (body["object"], body["type"]) == ("error", "RateLimitError")
    assert frame.startswith(b'data: {"error":{')
