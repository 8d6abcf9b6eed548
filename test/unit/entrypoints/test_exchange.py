"""An exchange writes what uvicorn's own cycle writes for the same messages, and fails where that one fails."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fixtures.wired import MemoryTransport
from mysglang.srt.entrypoints.exchange import Exchange

HEADERS = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"X-Mixed", b"a\tb"),
    (b"Content-Length", b"4"),
    (b"content-length", b"6"),
    (b"Transfer-Encoding", b"Chunked"),
    (b"transfer-encoding", b"gzip"),
    (b"connection", b"Close, x"),
    (b"Connection", b"keep-alive"),
    (b"x-latin", b"caf\xe9"),
    (b"x y", b"1"),
    (b"x-a", b"1\r\nx-b: 2"),
    (b"x-a", b"\x7f"),
    (b"x\xe9", b"1"),
]


def a_body(parts: list[bytes]) -> list[dict[str, Any]]:
    last = len(parts) - 1
    return [{"type": "http.response.body", "body": part, "more_body": at < last} for at, part in enumerate(parts)]


@st.composite
def answers(draw: st.DrawFn) -> list[dict[str, Any]]:
    headers = draw(st.lists(st.sampled_from(HEADERS), max_size=4))
    status = draw(st.sampled_from([200, 200, 204, 304, 404, 500]))
    start = {"type": "http.response.start", "status": status, "headers": headers}
    messages = [start, *a_body(draw(st.lists(st.sampled_from([b"", b"ab", b"abcd"]), min_size=1, max_size=3)))]
    odd = draw(st.integers(0, 9))
    # An application may begin twice, say nothing, or go on behind the end.
    return {0: messages[1:], 1: [start, *messages], 2: [*messages, messages[-1]], 3: [{"type": "odd"}]}.get(
        odd, messages
    )


async def written(
    kind: type[RequestResponseCycle], messages: list[dict[str, Any]], method: str, *, keep_alive: bool, leaves: bool
) -> tuple[object, ...]:
    """Returns the bytes for the client, and how the cycle stands behind them."""
    transport, completed = MemoryTransport(), []
    scope: Any = {"type": "http", "http_version": "1.1", "method": method, "headers": []}
    log = logging.getLogger("test")
    cycle = kind(
        *(scope, transport, FlowControl(transport), log, log, False, [(b"date", b"today")], asyncio.Event()),
        *(True, keep_alive, lambda: completed.append(1)),
    )
    failed = False
    try:
        for number, message in enumerate(messages):
            cycle.disconnected = leaves and number == 1
            await cycle.send(message)  # type: ignore[arg-type]
    except RuntimeError:
        failed = True
    known = (cycle.response_started, cycle.response_complete, cycle.keep_alive, cycle.waiting_for_100_continue)
    return transport.written, transport.closed, failed, completed, known


@given(answers(), st.sampled_from(["GET", "HEAD"]), st.booleans(), st.booleans())
def test_what_is_written_is_what_uvicorn_writes(
    messages: list[dict[str, Any]], method: str, keep_alive: bool, leaves: bool
) -> None:
    ours, theirs = (
        asyncio.run(written(kind, messages, method, keep_alive=keep_alive, leaves=leaves))
        for kind in (Exchange, RequestResponseCycle)
    )
    assert ours == theirs


def test_an_end_is_the_last_chunk() -> None:
    async def run(*, at_once: bool) -> bytes:
        transport = MemoryTransport()
        scope: Any = {"type": "http", "http_version": "1.1", "method": "POST", "headers": []}
        log = logging.getLogger("test")
        flow, news = FlowControl(transport), asyncio.Event()
        cycle = Exchange(scope, transport, flow, log, log, False, [], news, False, True, lambda: None)
        await cycle.send({"type": "http.response.start", "status": 200})
        flow.pause_writing()
        ending = asyncio.create_task(cycle.end() if at_once else cycle.send(a_body([b""])[0]))
        await asyncio.sleep(0)
        assert not transport.written.endswith(b"0\r\n\r\n"), "the client has not taken enough"
        flow.resume_writing()
        await ending
        assert cycle.response_complete and news.is_set()
        return transport.written

    assert asyncio.run(run(at_once=True)) == asyncio.run(run(at_once=False))


def test_the_access_log_is_uvicorns(caplog: pytest.LogCaptureFixture) -> None:
    async def run(kind: type[RequestResponseCycle]) -> str:
        transport = MemoryTransport()
        scope: Any = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/a b",
            "query_string": b"c=d",
            "client": ("1.2.3.4", 5),
            "headers": [],
        }
        log = logging.getLogger("test.access")
        event = asyncio.Event()
        cycle = kind(scope, transport, FlowControl(transport), log, log, True, [], event, False, True, lambda: None)
        await cycle.send({"type": "http.response.start", "status": 204, "headers": []})
        return caplog.messages[-1]

    with caplog.at_level(logging.INFO, "test.access"):
        assert (
            asyncio.run(run(Exchange))
            == asyncio.run(run(RequestResponseCycle))
            == ('1.2.3.4:5 - "GET /a%20b?c=d HTTP/1.1" 204')
        )
