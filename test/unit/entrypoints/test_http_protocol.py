"""A connection of the front door: what it refuses, what it keeps while it waits, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import uvicorn
import uvloop
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from fixtures.patience import PATIENCE_S
from fixtures.wired import Wired
from mysglang.srt.entrypoints.framing import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES
from mysglang.srt.entrypoints.http_protocol import MAX_UNREAD_BYTES, Connections, OneAtATime

HOST = b"Host: localhost\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


class App:
    """Answers with what it saw: path, headers, body. `/slow` waits until it is let go; `/early` reads no body."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.left = 0
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope["path"])
        request = Request(scope, receive)
        body = b""
        if scope["path"] != "/early":
            try:
                body = await request.body()
            except ClientDisconnect:
                self.left += 1
                return
        if scope["path"] == "/slow":
            await self.let_go.wait()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        told = json.dumps({"path": scope["path"], "headers": headers, "body": body.decode()}).encode()
        length = str(len(told)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": told})


class Endless(App):
    """Answers until it is let go, whether or not the client reads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not self.let_go.is_set():
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
            await asyncio.sleep(0)


class Counting(OneAtATime):
    """Knows how much it was sent."""

    heard = 0

    def data_received(self, data: bytes) -> None:
        self.heard += len(data)
        super().data_received(data)


class Door:
    """A listening front door on the loop that runs."""

    def __init__(self, app: App, *, read_timeout_s: float = 30.0) -> None:
        self.app = app
        self._config = uvicorn.Config(app, loop="none", ws="none", lifespan="off", log_config=None, access_log=False)
        self._state = ServerState()
        self._common = Connections(30.0, read_timeout_s)
        self.connections: list[weakref.ref[Counting]] = []
        self.port = 0

    def _connection(self) -> Counting:
        connection = Counting(self._config, self._state, {}, common=self._common)
        self.connections.append(weakref.ref(connection))
        return connection

    async def __aenter__(self) -> Door:
        self._server = await asyncio.get_running_loop().create_server(self._connection, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, *parts: bytes) -> bytes:
        """Answer to `parts`, sent one after another, until the server closes or nothing is missing."""
        reader, writer = await self.open()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    async def statuses(self, *parts: bytes) -> list[int]:
        return [answer.status_code for answer in answers(await self.send(*parts))]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0)

    def has_heard(self, number: int, size: int) -> bool:
        """True if the connection of this number, from 1 on, exists, and has received that many bytes."""
        if len(self.connections) < number:
            return False
        connection = self.connections[number - 1]()
        return connection is None or connection.heard >= size

    @property
    def kept(self) -> int:
        """Connections of which something is left."""
        return sum(connection() is not None for connection in self.connections)


def answers(data: bytes) -> list[httpx.Response]:
    """All the answers in `data`, each of which has a length."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        headers = [tuple(line.split(b": ", 1)) for line in lines]
        length = next(int(value) for name, value in headers if name.lower() == b"content-length")
        found.append(httpx.Response(int(status.split()[1]), headers=headers, content=rest[:length]))  # type: ignore[arg-type]
        data = rest[length:]
    return found


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with Door(App()) as door:
        yield door


def heads(part: bytes, count: int) -> list[bytes]:
    return [part] * count


@pytest.mark.promise(41)
@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (414, [b"GET /", *heads(b"a" * 1000, 100)]),
        (414, [b"GET /" + b"a" * 100_000]),
        (431, [GET, *heads(b"a: b\r\n" * 200, 100)]),
        (431, [GET, *heads(b"a:\r\n" * 200, 100)]),
        (431, [GET + b"a:" + b"b" * 100_000]),
        (431, [GET + b"a" * 100_000]),
        (431, [GET + b"a:", *heads(b"b" * 1000, 100)]),
        (431, [GET + b"x: y\r\n" * MAX_HEADERS + b"\r\n"]),
        (431, [b"\r\n" * 50_000]),
        (431, [CHUNKED, b"1;", *heads(b"a" * 1000, 100)]),
        (431, [CHUNKED, b"1;" + b"a" * 200_000]),
        (431, [CHUNKED, b"1\r\nx\r\n0\r\n", *heads(b"a: b\r\n" * 100, 100)]),
        (431, [CHUNKED, b"1\r\nx\r\n0\r\na:", *heads(b"b" * 1000, 100)]),
        (431, [CHUNKED, *heads((b"1;%b\r\nx\r\n" % (b"a" * 200)), 1000)]),
    ],
)
async def test_promise_41_what_never_ends_is_refused(door: Door, status: int, parts: list[bytes]) -> None:
    (answer,) = answers(await door.send(*parts))
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")
    assert answer.json()["error"]["message"]
    assert set(door.app.seen) <= {"/"} and door.app.left == len(door.app.seen)


@pytest.mark.promise(41)
async def test_promise_41_an_unfinished_head_holds_no_more_than_its_limit(door: Door) -> None:
    _, writer = await door.open()
    sent = GET + b"a: b\r\n" * (MAX_HEADERS - 2) + b"c: " + b"d" * 50_000
    writer.write(sent)
    await door.until(lambda: door.has_heard(1, len(sent)))
    connection = door.connections[0]()
    assert connection is not None and len(connection.headers) <= MAX_HEADERS
    assert connection._framing.room == MAX_HEAD_BYTES - len(sent)
    writer.transport.abort()


@pytest.mark.promise(41)
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * (256 << 10),
        GET + b"a:\r\n" * (64 << 10),
        GET + b"a:" + b"b" * (256 << 10),
        b"\r\n" * (128 << 10),
        CHUNKED + b"1;" + b"a" * (256 << 10),
        CHUNKED + b"1\r\nx\r\n" * (40 << 10),
        CHUNKED + b"0\r\n" + b"a:\r\n" * (64 << 10),
    ],
)
async def test_promise_41_what_is_read_at_once_holds_up_nobody(sent: bytes) -> None:
    """The largest amount that arrives at once, measured in CPU time of this thread."""
    wired = Wired(App())
    begun = time.thread_time()
    wired.protocol.data_received(sent)
    assert time.thread_time() - begun < 0.3
    wired.leave()
    await wired.until(lambda: not wired.protocol.tasks)


async def test_what_is_large_and_honest_is_answered(door: Door) -> None:
    url = b"/" + b"u" * (MAX_URL_BYTES - 100)
    head = b"GET " + url + b" HTTP/1.1\r\n" + HOST + b"".join(b"a%d: b\r\n" % i for i in range(200))
    head += b"long: " + b"l" * 20_000 + b"\r\nConnection: close\r\n\r\n"
    assert await door.statuses(head) == [200]
    assert await door.statuses(*[head[i : i + 997] for i in range(0, len(head), 997)]) == [200]


async def test_a_body_of_small_chunks_with_trailers(door: Door) -> None:
    size = 50_000
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    (answer,) = answers(await door.send(head + b"1\r\nx\r\n" * size + b"0\r\nAuthorization: Bearer k\r\n\r\n"))
    assert answer.json()["body"] == "x" * size
    assert "authorization" not in dict(answer.json()["headers"])


async def test_a_large_body_in_one_piece_and_another_request_behind_it(door: Door) -> None:
    body = b"x" * 300_000
    post = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n" % len(body)
    reader, writer = await door.open()
    for _ in range(3):
        writer.write(post + b"\r\n" + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["body"] == body.decode()
    writer.transport.abort()


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, GET + HOST + b"\r\n"),
        (400, GET + b"Authorization: a\r\nAuthorization: b\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nContent-Type: application/json\r\n\r\n"),
        (400, GET + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
        (400, GET + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, GET + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n"),
        (400, GET + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (400, b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, GET + b"Content-Length: +1\r\n\r\nx"),
        (400, GET + b"Content-Length: 1, 1\r\n\r\nx"),
        (400, GET + b"X: a\r\n b\r\n\r\n"),
        (400, GET + b"X : a\r\n\r\n"),
        (400, GET + b"X: a\nY: b\r\n\r\n"),
        (400, GET + b"X: a\rY: b\r\n\r\n"),
        (400, GET + b"X: a\0b\r\n\r\n"),
        (400, GET + b": a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\n" + b"Host: a\n\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n"),
        (400, b"CONNECT evil.example:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
        (400, CHUNKED + b"1\nx\r\n0\r\n\r\n"),
        (400, CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n"),
        (400, CHUNKED + b"1\r\nxy\r\n0\r\n\r\n"),
        (400, CHUNKED + b"fffffffffffffffff1\r\nx\r\n"),
        (505, b"GET /\r\n\r\n"),
        (505, b"GET / HTTP/2.0\r\n" + HOST + b"\r\n"),
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(door: Door, status: int, data: bytes) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
    (answer,) = answers(await door.send(data + smuggled))
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")
    assert "/smuggled" not in door.app.seen


@pytest.mark.parametrize("length", [b"Content-Length: 43", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("cut", [None, 0, 20])
async def test_a_request_for_another_protocol_keeps_its_body(length: bytes, cut: int | None) -> None:
    """Java's client asks for HTTP/2 with every request; what is in a body must never be taken for a request."""
    app = App()
    body = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
    assert len(body) == 43
    sent = body if length.startswith(b"Content") else b"2b\r\n" + body + b"\r\n0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + length + b"\r\n\r\n"
    wired = Wired(app)
    for part in [head + sent] if cut is None else [head + sent[:cut], sent[cut:]]:
        wired.protocol.data_received(part)
    await wired.until(lambda: wired.protocol.cycle.response_complete)
    await asyncio.sleep(0)
    (answer,) = answers(wired.transport.written)
    assert answer.json()["body"] == body.decode()
    assert app.seen == ["/"]


async def test_a_request_for_another_protocol_without_a_body(door: Door) -> None:
    upgrade = GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    reader, writer = await door.open()
    for _ in range(2):
        writer.write(upgrade)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_garbage_behind_a_request_does_not_touch_its_answer(door: Door) -> None:
    door.app.let_go.set()
    for garbage in (b"\x00\x01garbage", b"a" * 100_000, GET + b"\r\n"):
        found = answers(await door.send(b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n" + garbage))
        assert [answer.status_code for answer in found] == [200]


async def test_a_body_without_end_behind_its_answer_ends_the_connection(door: Door) -> None:
    length = MAX_UNREAD_BYTES * 2
    reader, writer = await door.open()
    writer.write(b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % length)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
    with pytest.raises(ConnectionError):
        for _ in range(length // (1 << 20)):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
    writer.transport.abort()


async def test_a_body_that_follows_its_answer_makes_room_for_the_next_request(door: Door) -> None:
    reader, writer = await door.open()
    for _ in range(2):
        writer.write(b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"x" * 100_000)
    writer.close()


@pytest.mark.promise(41)
@pytest.mark.parametrize("sent", [b"GET / HT", GET, GET + b"a: b", CHUNKED + b"1\r\n", b"\r\n"])
async def test_promise_41_a_request_that_takes_too_long_is_told_so(sent: bytes) -> None:
    async with Door(App(), read_timeout_s=0.05) as door:
        (answer,) = answers(await door.send(sent))
        assert answer.status_code == 408 and "--read-timeout" in answer.json()["error"]["message"]


@pytest.mark.promise(41)
async def test_promise_41_a_head_that_drips_has_one_deadline() -> None:
    async with Door(App(), read_timeout_s=0.3) as door:
        reader, writer = await door.open()
        writer.write(GET)
        answered = asyncio.create_task(reader.readline())
        dripped = 0
        while not answered.done():
            writer.write(b"a: b\r\n")
            dripped += 1
            await asyncio.wait([answered], timeout=0.01)
        assert answered.result().startswith(b"HTTP/1.1 408") and dripped < MAX_HEADERS
        writer.transport.abort()


@pytest.mark.promise(41)
async def test_promise_41_empty_lines_keep_no_connection() -> None:
    async with Door(App()) as door:
        reader, writer = await door.open()
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"}")
        connection = door.connections[0]()
        assert connection is not None
        connection._arrival._limit_s = 0.05  # from here on: the request before must arrive, however slow the machine is
        del connection
        writer.write(b"\r\n")
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 408")
        writer.transport.abort()


POST = b"POST / HTTP/1.1\r\n" + HOST


@pytest.mark.promise(41)
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /" + b"a" * 1000,
        GET + b"a: b\r\n" * 100,
        GET + b"a: b\r\n" * 1000,
        GET + b"\r\n",
        POST + b"Content-Length: 100\r\n\r\nx",
        POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500_000,
        POST + b"Content-Length: 1\r\n\r\nx" + GET + b"\r\n",
        CHUNKED + b"1\r\nx\r\n0\r\na: b\r\n",
        CHUNKED + b"1;" + b"a" * 100_000,
        b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n",
        GET + HOST + b"\r\n",
        b"\x00garbage",
        GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nx",
    ],
)
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_promise_41_no_cycle_keeps_a_connection(
    sent: bytes, reset: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """With the collector off, what is freed is freed since nothing refers to it."""
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_come_and_go(sent, reset=reset))
    finally:
        gc.enable()


async def _come_and_go(sent: bytes, *, reset: bool) -> None:
    async with Door(App()) as door:
        for number in range(1, 4):
            _, writer = await door.open()
            writer.write(sent)
            await door.until(lambda number=number: door.has_heard(number, len(sent[:5000])))  # type: ignore[misc]
            if reset:
                writer.transport.abort()
            else:
                writer.close()
        door.app.let_go.set()
        await door.until(lambda: not door.kept)


@pytest.mark.promise(11)
async def test_promise_11_a_client_that_does_not_read_holds_up_no_end() -> None:
    """Else each would be waited for, and then be an error in the log."""

    async with Door(Endless()) as door:
        _, writer = await door.open()
        writer.write(GET + b"\r\n")
        await door.until(lambda: bool(door.connections))
        connection = door.connections[0]()
        assert connection is not None
        await door.until(lambda: bool(door.app.seen) and connection.flow.write_paused)
        connection.shutdown()
        await door.until(lambda: connection.cycle.disconnected)
        door.app.let_go.set()
        writer.transport.abort()
