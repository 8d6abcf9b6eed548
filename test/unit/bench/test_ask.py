"""The HTTP client and what reads its pieces, against a server that says exactly what it is told to."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from fixtures.patience import PATIENCE_S, until
from mysglang.bench import ask
from mysglang.bench.address import Address
from mysglang.bench.ask import Asker, FrameSplitter
from mysglang.bench.backends import AskOptions, make_backend
from mysglang.bench.http_client import ConnectionFailed, HttpClient
from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord
from mysglang.bench.refused import Refused

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PAUSE_S = 0.05


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def frame(text: str, count: int) -> bytes:
    return b"data: " + orjson.dumps({"text": text, "meta_info": {"completion_tokens": count}}) + b"\n\n"


def plain(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Clock:
    """The clock of the asker: it stands still but for what a script says. `reads` counts how often it was read."""

    def __init__(self) -> None:
        self.now, self.reads = 0.0, 0

    def perf_counter(self) -> float:
        self.reads += 1
        return self.now


class Script:
    """Writes the pieces with a pause between them, then hangs up. `asked` is what it was sent."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.asked = b""
        self._over = asyncio.Event()
        self._serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Content-Length" in line), 0)
        self.asked = head + await reader.readexactly(length)
        for piece in self.pieces:
            await self.say(writer, piece)
            if self._over.is_set():
                break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def say(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        writer.write(piece)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), PAUSE_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL. Leaving ends whatever it is still saying."""
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._over.set()
            await asyncio.gather(*(task for task in self._serving if task is not None))


class TimedScript(Script):
    """Says a piece each second of `clock`, once the client has stamped the piece before."""

    def __init__(self, clock: Clock, *pieces: bytes) -> None:
        super().__init__(*pieces)
        self._clock = clock

    async def say(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        reads = self._clock.reads
        self._clock.now += 1
        writer.write(piece)
        if piece != STREAM_HEAD:  # nothing to stamp
            await until(lambda: self._clock.reads > reads)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ask, "time", clock)
    return clock


async def asked(script: Script, *, stream: bool = True, name: str = "sglang") -> RequestRecord:
    async with script.running() as url:
        asker = Asker(HttpClient(url, {"X-Who": "me"}), make_backend(name), AskOptions(model="m", stream=stream))
        return await asyncio.wait_for(asker.ask(Prompt("Hi", 1, 3)), PATIENCE_S)


async def test_chunks_are_stamped_when_they_come(clock: Clock) -> None:
    last = chunk(frame("ab", 2)) + chunk(b"data: [DONE]\n\n") + END
    script = TimedScript(clock, STREAM_HEAD, chunk(frame("a", 1)), last)
    record = await asked(script)
    assert (record.ok, record.text, record.output_tokens) == (True, "ab", 2)
    assert (record.ttft, record.itls(), record.latency) == (2.0, [1.0], 3.0)
    head, _, body = script.asked.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Who: me" in head
    assert orjson.loads(body)["text"] == "Hi"


async def test_a_frame_in_pieces_counts_when_it_is_whole(clock: Clock) -> None:
    whole = frame("ab", 2)
    record = await asked(TimedScript(clock, STREAM_HEAD + chunk(whole[:9]), chunk(whole[9:]) + END))
    assert (record.output_tokens, record.ttft) == (2, 2.0)


async def test_a_whole_answer() -> None:
    body = orjson.dumps({"text": "abc", "meta_info": {"completion_tokens": 3}})
    record = await asked(Script(plain("200 OK", body)), stream=False)
    assert (record.text, record.output_tokens, len(record.arrivals)) == ("abc", 3, 1)


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([plain("429 Too Many", b'{"message": "full"}')], 'status 429: {"message": "full"}'),
        ([STREAM_HEAD + chunk(frame("a", 1))], "hung up before"),
        ([STREAM_HEAD + chunk(b"data: {]\n\n") + END], "cannot be read"),
        ([STREAM_HEAD + chunk(b"data: [DONE]\n\n") + END], "no tokens"),
        ([b"what is this\r\n\r\n"], "the answer cannot be read"),
        ([b""], "hung up before"),
    ],
)
async def test_what_goes_wrong_is_in_the_record(pieces: list[bytes], said: str) -> None:
    record = await asked(Script(*pieces))
    assert said in record.error
    assert record.end > record.start


async def test_nobody_there() -> None:
    async with Script().running() as url:
        pass
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        await HttpClient(url).fetch("GET", "/")


async def test_a_cancelled_request_hangs_up() -> None:
    script = Script(STREAM_HEAD, *[chunk(b": ping\n\n")] * 100)
    async with script.running() as url:
        asker = Asker(HttpClient(url), make_backend("sglang"), AskOptions(model="m"))
        asking = asyncio.create_task(asker.ask(Prompt("Hi", 1, 3)))
        await until(lambda: bool(script.asked))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


def test_frames() -> None:
    splitter = FrameSplitter()
    pieces = [b"data: 1\n", b"\ndata:2\n\n: ping\n\nda", b"ta: 3\n\ndata: [DONE]\n\n"]
    assert [list(splitter.feed(piece)) for piece in pieces] == [[], [b"1", b"2"], [b"3"]]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:80/", Address("host", 80, False, "")),
        ("https://host/a/b", Address("host", 443, True, "/a/b")),
        ("http://[::1]:9", Address("::1", 9, False, "")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize("make", [lambda: HttpClient("host:80"), lambda: HttpClient("http://h", {"A": "b\r\nC: d"})])
def test_what_is_no_server_is_refused(make: Callable[[], HttpClient]) -> None:
    with pytest.raises(Refused):
        make()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("host:80", "is not an address such as"),
        ("http://[::1", "is not an address such as"),
        (f"http://{'a' * 64}.com", "is not an address such as"),
        ("http://host:65536", "the port is not a number below 65536"),
        ("http://host:x", "the port is not a number below 65536"),
        ("http://a b", "holds characters that no address may have"),
        ("http://a/b c", "holds characters that no address may have"),
        ("http://a/ä", "holds characters that no address may have"),
    ],
)
def test_an_address_that_is_wrong_is_named(url: str, said: str) -> None:
    with pytest.raises(Refused, match=f"^--url '{re.escape(url)}'.* ?{said}"):
        Address.of(url, "--url")
