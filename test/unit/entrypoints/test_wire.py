"""The wire of a connection: pieces of a body, room, and a client that leaves."""

import asyncio
import gc
import weakref

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fixtures.wired import Wired
from mysglang.srt.entrypoints.wire import Wire, wire_of


class App:
    """Begins an answer, and then waits."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.wire = wire_of(scope)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun() -> tuple[Wired, App, Wire]:
    app = App()
    wired = Wired(app)
    wired.post("/", {})
    await wired.until(lambda: app.wire is not None)
    assert app.wire is not None
    return wired, app, app.wire


async def test_pieces_make_the_body() -> None:
    wired, app, wire = await begun()
    for piece in (b"one ", b"", b"two " * 100):
        wire.write_piece(piece)
    app.go_on.set()
    assert (await wired.answer()).content == b"one " + b"two " * 100


@pytest.mark.parametrize("past_asgi", [False, True])
async def test_http_1_0_gets_no_chunks(*, past_asgi: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        wire = wire_of(scope)
        assert wire is not None
        for piece in (b"one ", b"", b"two"):
            if past_asgi:
                wire.write_piece(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        if past_asgi:
            await wire.end()
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    wired = Wired(app)
    wired.protocol.data_received(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    await wired.until(lambda: wired.transport.closed)
    head, _, body = wired.transport.written.partition(b"\r\n\r\n")
    assert body == b"one two"
    assert b"connection: close" in head and b"transfer-encoding" not in head


async def test_room_is_the_clients() -> None:
    wired, _, wire = await begun()
    told: list[bool] = []
    wire.call_when_room(lambda: told.append(wire.has_room))
    assert wire.has_room
    wired.protocol.pause_writing()
    assert not wire.has_room and not told
    wired.protocol.resume_writing()
    assert told == [True]
    wire.call_when_room(None)
    wired.protocol.pause_writing()
    wired.protocol.resume_writing()
    assert told == [True]


async def test_who_leaves_is_told_of_once() -> None:
    wired, _, wire = await begun()
    told: list[str] = []
    wire.call_when_left(lambda: told.append("left"))
    assert not told
    wired.leave()
    assert told == ["left"]
    wire.write_piece(b"nobody reads this")
    await asyncio.sleep(0)
    assert b"nobody" not in wired.transport.written


async def test_who_has_left_is_told_of_at_once() -> None:
    wired, _, wire = await begun()
    wired.leave()
    told: list[str] = []
    wire.call_when_left(lambda: told.append("left"))
    assert told == ["left"]


async def test_nobody_is_told_who_does_not_want_to_be() -> None:
    wired, app, wire = await begun()
    told: list[str] = []
    wire.call_when_left(lambda: told.append("left"))
    wire.call_when_left(None)
    wired.leave()
    assert not told
    app.go_on.set()


def test_a_scope_of_another_server_has_none() -> None:
    assert wire_of({"type": "http"}) is None
    assert wire_of({"type": "http", "state": {}}) is None


async def test_a_scope_keeps_no_connection() -> None:
    wired, app, wire = await begun()
    scope = wired.protocol.cycle.scope
    app.go_on.set()
    await wired.answer()
    wired.leave()
    kept = weakref.ref(wired.protocol)
    app.wire = None
    del wired, wire
    gc.collect()
    assert kept() is None and wire_of(scope) is None  # type: ignore[arg-type]
