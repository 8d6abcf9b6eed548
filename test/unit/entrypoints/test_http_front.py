"""The gate: 503 in words until it is open and after it is closed; it knows when the last request has left."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from mysglang.srt.entrypoints.http_front import Gate

Message = MutableMapping[str, Any]

SCOPE = {"type": "http", "method": "GET", "path": "/health", "headers": []}


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(gate: Gate) -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(dict(SCOPE), receive, send)
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


class SlowApp:
    """Answers 200 once it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})


async def test_closed_from_the_start() -> None:
    status, body, headers = await ask(Gate())
    assert status == 503
    assert b"The server is starting." in body
    assert b"retry-after" in headers


async def test_open_then_closed_with_a_reason() -> None:
    gate, app = Gate(), SlowApp()
    app.released.set()
    gate.open(app)
    assert await ask(gate) == (200, b"here", {})
    gate.close("Enough.")
    status, body, _ = await ask(gate)
    assert status == 503 and b"Enough." in body


async def test_who_is_inside_is_not_disturbed_and_is_waited_for() -> None:
    gate, app = Gate(), SlowApp()
    gate.open(app)
    inside = [asyncio.create_task(ask(gate)) for _ in range(2)]
    await asyncio.sleep(0)
    assert gate.open_requests == 2
    gate.close("Enough.")
    assert not await gate.emptied(timeout=0.01)
    app.released.set()
    assert await gate.emptied(timeout=5)
    assert [(await task)[0] for task in inside] == [200, 200]
    assert gate.open_requests == 0


async def test_an_empty_gate_is_empty_at_once() -> None:
    assert await Gate().emptied(timeout=0)


async def test_a_request_that_fails_or_is_cancelled_has_left() -> None:
    gate = Gate()

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
    assert await gate.emptied(timeout=0)
