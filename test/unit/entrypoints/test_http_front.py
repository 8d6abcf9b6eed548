"""The gate: 503 in words until it is open and after it is closed; it knows when the last request has left."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from mysglang.srt.entrypoints.http_front import Gate
from mysglang.srt.errors import WorkerDied
from mysglang.srt.managers.fronts import Board, Column

Message = MutableMapping[str, Any]

SCOPE = {"type": "http", "method": "GET", "path": "/health", "headers": []}


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(gate: Gate, path: str = "/health") -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate({**SCOPE, "path": path}, receive, send)
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


class SlowApp:
    """Answers 200 once it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})


@pytest.mark.promise(30)
async def test_closed_from_the_start() -> None:
    """No middleware has seen the request, and the answer has an id all the same."""
    status, body, headers = await ask(Gate())
    assert status == 503
    error = orjson.loads(body)["error"]
    assert error["message"] == "The server is starting."
    assert b"retry-after" in headers
    assert headers[b"x-request-id"].decode() == error["request_id"]


async def test_closed_in_the_dialect_of_the_path() -> None:
    _, body, _ = await ask(Gate(), "/v1/messages")
    told = orjson.loads(body)
    assert (told["type"], told["error"]["message"]) == ("error", "The server is starting.")
    _, body, _ = await ask(Gate(), "/api/chat")
    assert orjson.loads(body)["error"] == "The server is starting."
    _, body, _ = await ask(Gate(), "/v1/chat/completions")
    assert orjson.loads(body).keys() == {"error"}
    gate = Gate()
    gate.drain()
    _, body, _ = await ask(gate, "/api/tags")
    assert orjson.loads(body)["error"] == "The server is shutting down."


async def test_open_then_closed_with_a_reason() -> None:
    gate, app = Gate(), SlowApp()
    app.released.set()
    gate.open(app)
    assert await ask(gate) == (200, b"here", {})
    gate.close(WorkerDied("Enough."))
    status, body, _ = await ask(gate)
    assert status == 503 and b"Enough." in body and b"engine_dead" in body


async def test_what_is_over_is_not_opened_again() -> None:
    """A server may be told to end, or lose a child, before there is an application."""
    for shut in (Gate.drain, lambda gate: gate.close(WorkerDied("Enough."))):
        gate, app = Gate(), SlowApp()
        app.released.set()
        shut(gate)
        gate.open(app)
        status, body, _ = await ask(gate)
        assert status == 503 and b"starting" not in body


async def test_who_is_inside_is_not_disturbed_and_is_counted() -> None:
    board, app = Board.alone(), SlowApp()
    gate = Gate(board)
    gate.open(app)
    inside = [asyncio.create_task(ask(gate)) for _ in range(2)]
    await asyncio.sleep(0)
    assert board.total(Column.OPEN_REQUESTS) == 2
    gate.close(WorkerDied("Enough."))
    app.released.set()
    assert [(await task)[0] for task in inside] == [200, 200]
    assert board.total(Column.OPEN_REQUESTS) == 0


async def test_a_request_that_fails_or_is_cancelled_has_left() -> None:
    board = Board.alone()
    gate = Gate(board)

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    gate.open(broken)
    with pytest.raises(RuntimeError, match="broken"):
        await ask(gate)
    gate.open(SlowApp())
    task = asyncio.create_task(ask(gate))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert board.total(Column.OPEN_REQUESTS) == 0
