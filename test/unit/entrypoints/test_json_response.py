"""An answer in one piece is the same, however it leaves."""

from __future__ import annotations

import asyncio
import random

import httpx
import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from fixtures.wired import Wired
from mysglang.srt.entrypoints import json_response as module
from mysglang.srt.entrypoints.json_response import PIECE_BYTES, json_response, written_response

LONG = [b"x" * (3 * PIECE_BYTES + 5), b"", b"y", *[b"z" * 1000] * 700, b"w" * PIECE_BYTES]


async def sent(parts: list[bytes]) -> tuple[list[Message], int]:
    """Messages of a response, and the number of turns that other tasks had in between."""
    messages: list[Message] = []
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    before = turns
    await written_response(parts)({"type": "http", "method": "GET"}, receive, send)
    had = turns - before
    task.cancel()
    return messages, had


async def test_a_long_one_leaves_in_pieces_between_which_others_have_their_turn() -> None:
    (start, *bodies), turns = await sent(LONG)
    assert dict(start["headers"])[b"content-length"] == str(sum(map(len, LONG))).encode()
    assert dict(start["headers"])[b"content-type"] == b"application/json"
    assert b"".join(message["body"] for message in bodies) == b"".join(LONG)
    assert max(len(message["body"]) for message in bodies) <= PIECE_BYTES
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]
    assert turns >= len(bodies) - 2


async def test_a_short_one_leaves_at_once() -> None:
    messages, _ = await sent([b"[", b"1", b"]"])
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    assert messages[1]["body"] == b"[1]"


@pytest.mark.parametrize("seed", range(5))
async def test_any_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 7)
    rng = random.Random(seed)
    parts = [rng.randbytes(rng.randrange(20)) for _ in range(30)]
    (_, *bodies), _ = await sent(parts)
    assert b"".join(message["body"] for message in bodies) == b"".join(parts)
    assert max(len(message["body"]) for message in bodies) <= 7


async def test_over_a_connection() -> None:
    data = {"numbers": list(range(200_000))}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await json_response(data)(scope, receive, send)

    wired = Wired(app)
    wired.post("/", {})
    await wired.until(lambda: wired.protocol.cycle.response_complete)
    await asyncio.sleep(0)
    head, _, body = wired.transport.written.partition(b"\r\n\r\n")
    assert orjson.loads(body) == data and b"transfer-encoding" not in head
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.get("/")).json() == data
