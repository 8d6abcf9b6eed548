"""Streams on the wire: the status waits for the first frame, errors are last frames, and a departed client is
noticed.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.types import Message

from fixtures.patience import PATIENCE_S, settled, until
from fixtures.scripted_engine import events
from mysglang.srt.entrypoints.departure import ClientDisconnected, while_connected
from mysglang.srt.entrypoints.streaming import DONE, EventStream, with_pings
from mysglang.srt.errors import Aborted, InvalidRequest, WorkerDied


class Wire:
    """The ASGI side of one connection: what was sent, and a client that leaves when told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.stuck = False
        """True if the client has stopped reading."""
        self.scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self.stuck and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    @property
    def request(self) -> Request:
        return Request(self.scope, self.receive)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Frames:
    """A generator of frames that tells how it ended."""

    def __init__(self, *items: bytes | Exception | None) -> None:
        self.items = items
        self.closed = False
        self.waiting = asyncio.Event()

    async def run(self) -> AsyncGenerator[bytes, None]:
        try:
            for item in self.items:
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    self.waiting.set()
                    await asyncio.Event().wait()
                    continue
                yield item
        finally:
            self.closed = True


async def respond(wire: Wire, frames: Frames) -> None:
    response = EventStream(frames.run())
    await response(wire.scope, wire.receive, wire.send)


async def test_a_reader_of_unicode_lines_finds_whole_frames() -> None:
    wire, text = Wire(), "a\u2028b\u2029c\x85d"
    data = b"data: " + orjson.dumps(text) + b"\n\n"
    await respond(wire, Frames(data, data, InvalidRequest(text)))
    lines = [line for line in wire.body.decode().splitlines() if line]
    assert [orjson.loads(line.removeprefix("data: ")) for line in lines[:2]] == [text, text]
    assert "error" in orjson.loads(lines[2].removeprefix("data: ")) and len(lines) == 3


async def test_frames_arrive_one_by_one_and_the_stream_ends() -> None:
    wire, frames = Wire(), Frames(b"data: 1\n\n", b"data: 2\n\n", DONE)
    await respond(wire, frames)
    assert wire.sent[0]["status"] == 200
    assert dict(wire.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in dict(wire.sent[0]["headers"])
    assert [message["body"] for message in wire.sent[1:]] == [b"data: 1\n\n", b"data: 2\n\n", DONE, b""]
    assert [message["more_body"] for message in wire.sent[1:]] == [True, True, True, False]
    assert frames.closed


async def test_an_error_before_the_first_frame_is_raised() -> None:
    wire, frames = Wire(), Frames(InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        await respond(wire, frames)
    assert not wire.sent
    assert frames.closed


@pytest.mark.promise(30)
@pytest.mark.parametrize(
    ("error", "code"),
    [(WorkerDied("scheduler_TP0 was killed"), "engine_dead"), (Aborted("out of memory", status=500), 500)],
)
async def test_an_error_in_the_midst_is_the_last_frame(error: Exception, code: object) -> None:
    wire, frames = Wire(), Frames(b"data: 1\n\n", error, DONE)
    await respond(wire, frames)
    first, last = events(wire.body)
    assert first == b"1"
    told = orjson.loads(last)["error"]
    assert told["code"] == code
    assert str(error) in told["message"]
    assert {"message", "type", "param", "code", "request_id"} <= told.keys()
    assert wire.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.promise(30)
async def test_a_bug_in_the_midst_is_logged_and_told_without_detail(caplog: pytest.LogCaptureFixture) -> None:
    wire, frames = Wire(), Frames(b"data: 1\n\n", ZeroDivisionError("secret"))
    with caplog.at_level(logging.ERROR):
        await respond(wire, frames)
    assert b"secret" not in wire.body
    assert orjson.loads(events(wire.body)[-1])["error"]["code"] == 500
    assert "secret" in caplog.text


@pytest.mark.promise(12)
@pytest.mark.parametrize("items", [(None,), (b"data: 1\n\n", None)], ids=["before the first frame", "after it"])
async def test_a_client_that_leaves_ends_the_generator_at_once(items: tuple[bytes | None, ...]) -> None:
    wire, frames = Wire(), Frames(*items)
    answering = asyncio.create_task(respond(wire, frames))
    await frames.waiting.wait()
    assert not frames.closed
    wire.left.set()
    await until(lambda: frames.closed)
    await asyncio.wait([answering], timeout=PATIENCE_S)
    assert answering.done()
    assert DONE not in wire.body


async def test_a_client_that_neither_reads_nor_stays() -> None:
    wire, frames = Wire(), Frames(b"data: 1\n\n", b"data: 2\n\n")
    wire.stuck = True
    answering = asyncio.create_task(respond(wire, frames))
    await until(lambda: len(wire.sent) == 2)
    assert not frames.closed
    wire.left.set()
    await asyncio.wait_for(answering, PATIENCE_S)
    assert frames.closed


async def test_a_server_that_shuts_down_ends_the_generator() -> None:
    wire, frames = Wire(), Frames(b"data: 1\n\n", None)
    answering = asyncio.create_task(respond(wire, frames))
    await frames.waiting.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert frames.closed


async def test_work_goes_on_while_the_client_stays() -> None:
    wire = Wire()

    async def work() -> int:
        await settled()
        return 7

    assert await while_connected(wire.request, work()) == 7


async def test_work_ends_when_the_client_leaves() -> None:
    wire, begun, ended = Wire(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(while_connected(wire.request, work()))
    await begun.wait()
    wire.left.set()
    with pytest.raises(ClientDisconnected):
        await waiting
    assert ended.is_set()


async def test_errors_of_work_are_its_callers() -> None:
    async def work() -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await while_connected(Wire().request, work())


class TestPings:
    async def test_silence_is_filled(self) -> None:
        frames = Frames(b"a", b"b", None)
        stream = with_pings(frames.run(), b"p", 0.01)
        assert [await anext(stream) for _ in range(4)] == [b"a", b"b", b"p", b"p"]
        await stream.aclose()
        assert frames.closed

    async def test_nothing_comes_before_the_first_frame(self) -> None:
        frames = Frames(None)
        first = asyncio.ensure_future(anext(with_pings(frames.run(), b"p", 0)))
        await settled()
        assert not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert frames.closed

    @pytest.mark.parametrize("place", [0, 1])
    async def test_an_error_is_an_error(self, place: int) -> None:
        frames = Frames(*[b"a"] * place, InvalidRequest("no"))
        stream = with_pings(frames.run(), b"p", 10)
        with pytest.raises(InvalidRequest):
            assert [frame async for frame in stream] == []
        assert frames.closed

    async def test_all_frames_come(self) -> None:
        frames = Frames(*[str(number).encode() for number in range(100)])
        assert [frame async for frame in with_pings(frames.run(), b"p", 10)] == list(frames.items)
        assert frames.closed

    @pytest.mark.promise(12)
    async def test_who_leaves_in_a_silence_ends_it(self) -> None:
        frames, wire = Frames(b"a", None), Wire()
        stream = EventStream(with_pings(frames.run(), b"p", 10))
        sending = asyncio.create_task(stream(wire.scope, wire.receive, wire.send))
        await frames.waiting.wait()
        wire.left.set()
        await sending
        assert frames.closed
