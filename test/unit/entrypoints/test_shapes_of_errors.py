"""A path speaks the dialect of its prefix, cut at a slash, below whatever root a proxy shows."""

import orjson
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from mysglang.srt.entrypoints.entrance import Entrance
from mysglang.srt.entrypoints.error_responses import ErrorFacts, error_frame, error_response
from mysglang.srt.entrypoints.ignored_fields import FieldLog
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
    await Entrance(app, log=FieldLog(), shapes=SHAPES)(Request(scope).scope, receive, send)
    return orjson.loads(found["body"]), found["frame"]


@pytest.mark.parametrize("root", ["", "/proxy"])
async def test_dialects(root: str) -> None:
    body, frame = await told("/v1/messages", root)
    assert body["error"] == {"type": "rate_limit_error", "message": "Busy."}
    assert frame.startswith(b"event: error\ndata: {")
    body, frame = await told("/api/nothing", root)
    assert body["error"] == "Busy."
    assert orjson.loads(frame)["error"] == "Busy."


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages_of_others", "/v1", "/v1/nothing"])
async def test_on_openais_paths_the_facts_stand_once(path: str) -> None:
    body, frame = await told(path)
    assert body.keys() == {"error"}
    assert frame == b"data: " + orjson.dumps(body) + b"\n\n"


@pytest.mark.parametrize("path", ["/generate", "/v1x", "/apis", "/"])
async def test_on_every_other_path_they_stand_flat_too(path: str) -> None:
    body, frame = await told(path)
    assert (body["object"], body["type"]) == ("error", "RateLimitError")
    assert body["error"] == {name: body[name] for name in body if name not in ("object", "error")}
    assert frame.startswith(b'data: {"error":{')
