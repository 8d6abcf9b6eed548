"""A connection of ours against uvicorn's own: for the same bytes, in whatever pieces, the same scope, the same body and
the same answer, or a refusal where a head could be read in two ways.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from fixtures.wired import MemoryTransport
from mysglang.srt.entrypoints.http_protocol import Connections, OneAtATime

TURNS = 30
"""Turns of the event loop in which an answer of `App` is certainly complete: it waits for nothing else."""


@dataclass
class App:
    """Records each request, and answers by its path."""

    seen: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", not scope["path"].endswith("/early")
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        # uvicorn lets trailers count as headers of the request; see test_http_protocol.py.
        headers = [pair for pair in scope["headers"] if pair[0] != b"trailer"]
        told = {key: value for key, value in scope.items() if key != "state"}
        self.seen.append(({**told, "headers": headers}, body))
        if scope["path"].endswith("/raises"):
            raise ValueError("on purpose")
        length = [(b"Content-Length", b"%d" % len(body))] if scope["path"].endswith("/fixed") else []
        close = [(b"connection", b"close")] if scope["path"].endswith("/close") else []
        status = 204 if scope["path"].endswith("/nothing") else 200
        headers = [(b"x-a", b"1"), *length, *close]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if status == 200:
            for part in (body[:3], body[3:]):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Side:
    """One protocol with its own application and transport."""

    def __init__(self, *, ours: bool) -> None:
        self.app, self.transport = App(), MemoryTransport()
        config = uvicorn.Config(
            self.app,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            root_path="/root",
        )
        state = ServerState()
        self.protocol = (
            OneAtATime(config, state, {}, common=Connections(30.0)) if ours else HttpToolsProtocol(config, state, {})
        )
        self.protocol.connection_made(self.transport)

    async def feed(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            if not self.transport.closed:
                self.protocol.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    @property
    def is_closing(self) -> bool:
        return self.protocol.transport.is_closing()

    def leave(self) -> None:
        self.transport.closed = True
        self.protocol.connection_lost(None)


@dataclass(frozen=True)
class Asked:
    """A whole request. What is neither clear nor foul may be refused, or else means what it means to uvicorn."""

    data: bytes
    clear: bool
    """True if every server reads it in one and the same way."""
    foul: bool = False
    """True if it must be refused."""


HARMLESS = [
    b"Accept: */*",
    b"X-A:  spaces \t",
    b"x-a: again",
    b"X-Empty:",
    b"X-Latin: \xe9",
    b"Expect: 100-continue",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Cookie: a=b",
    b"Cookie: c=d",
    b"Authorization: Bearer k",
    b"Content-Type: application/json",
]
DOUBTFUL = [
    b"Host: other",
    b"Authorization: Bearer other",
    b"Content-Type: text/plain",
    b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: +3",
    b"X-A : b",
    b"X-A: a\r\n folded",
    b"X-A: \x00",
    b"X-A: a\nX-B: b",
    b": nameless",
    b"nothing",
]
PATHS = [b"/fixed", b"/pieces", b"/nothing", b"/close", b"/early", b"/raises", b"/a%20b?c=%20d", b"/x?", b"//x/../y"]


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    method = draw(st.sampled_from([b"GET", b"POST", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"DELETE"]))
    path = draw(st.sampled_from([*PATHS, *PATHS, b"http://h/x", b"http://other/x", b"*", b"x"]))
    version = draw(st.sampled_from([b"1.1"] * 6 + [b"1.0", b"2.0"]))
    body = draw(st.binary(max_size=40)) if method not in (b"GET", b"HEAD") else b""
    lines = [b"Host: h", *draw(st.lists(st.sampled_from(HARMLESS), max_size=4, unique=True))]
    doubtful = draw(st.lists(st.sampled_from(DOUBTFUL), max_size=1)) if draw(st.integers(0, 2)) == 0 else []
    lines += doubtful
    if draw(st.booleans()) and body:
        lines.append(b"Transfer-Encoding: chunked")
        cut = draw(st.integers(0, len(body)))
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
        body += b"0\r\n" + draw(st.sampled_from([b"", b"", b"Trailer: t\r\n"])) + b"\r\n"
        chunked = True
    else:
        chunked = False
        if body or draw(st.booleans()):
            lines.append(b"Content-Length: %d" % len(body))
    host = draw(st.integers(0, 9)) > 0
    lines = draw(st.permutations(lines if host else lines[1:]))
    data = b"%b %b HTTP/%b\r\n" % (method, path, version) + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    clear = not doubtful and host and path[:1] == b"/" and (version == b"1.1" or (version == b"1.0" and not chunked))
    hosts = host + (b"Host: other" in doubtful)
    foul = hosts == 2 or (hosts == 0 and version == b"1.1") or version == b"2.0"
    foul = foul or path in (b"*", b"x") or (path == b"http://other/x" and host)
    return Asked(data, clear, foul)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(places)]


async def compared(asked: list[Asked], at: list[int]) -> int:
    """Asks both sides, one request after the answer to another; returns how many both served."""
    ours, theirs = Side(ours=True), Side(ours=False)
    served = 0
    try:
        for one in asked:
            before, seen = len(ours.transport.written), len(ours.app.seen)
            pieces = cut(one.data, at)
            await ours.feed(pieces)
            await theirs.feed(pieces)
            answer = ours.transport.written[before:]
            refused = (
                answer.partition(b" ")[2][:3] in (b"400", b"431", b"414", b"505") and b"connection: close" in answer
            )
            if refused:
                assert not one.clear, f"{one.data!r} was refused: {answer!r}"
                assert len(ours.app.seen) == seen and ours.is_closing
                break
            assert not one.foul, f"{one.data!r} was served: {answer!r}"
            assert ours.transport.written == theirs.transport.written
            assert ours.app.seen == theirs.app.seen
            assert ours.is_closing == theirs.is_closing
            served += len(ours.app.seen) > seen
            if ours.is_closing:
                break
    finally:
        ours.leave()
        theirs.leave()
        await asyncio.sleep(0)
    return served


@pytest.mark.promise(41)
@given(st.lists(requests(), min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=8))
def test_promise_41_the_same_bytes_mean_what_they_mean_to_uvicorn(asked: list[Asked], at: list[int]) -> None:
    asyncio.run(compared(asked, at))


def test_the_comparison_serves_requests() -> None:
    plain = Asked(b"POST /fixed HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", clear=True)
    chunked = b"POST /pieces HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert asyncio.run(compared([plain, Asked(chunked, clear=True), plain], [3, 30, 60, 70])) == 3
