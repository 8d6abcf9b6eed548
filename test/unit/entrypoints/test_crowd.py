"""More connections than there is room for: each that is turned away hears so, and there is room again later."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn.server import ServerState

from fixtures.patience import PATIENCE_S
from mysglang.srt.entrypoints.crowd import Reception, most_connections


class Echo(asyncio.Protocol):
    """Serves a connection, and is counted as uvicorn's protocols are."""

    def __init__(self, *, server_state: ServerState, **_rest: Any) -> None:
        self._connections: set[Any] = server_state.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


@asynccontextmanager
async def reception(most: int) -> AsyncIterator[tuple[ServerState, int]]:
    """The connections that were accepted, and the port."""
    state = ServerState()
    make = Reception(Echo, most)
    server = await asyncio.get_running_loop().create_server(lambda: make(server_state=state), "127.0.0.1", 0)
    async with server:
        yield state, server.sockets[0].getsockname()[1]


async def ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    return reader, writer


@pytest.mark.promise(46)
async def test_promise_46_one_too_many_is_answered_503_and_those_inside_are_served() -> None:
    async with reception(most=1) as (state, port):
        reader, writer = await ask(port)
        assert await reader.readline() == b"GET /health HTTP/1.1\r\n"
        refused, other = await ask(port)
        head, _, body = (await refused.read()).partition(b"\r\n\r\n")
        other.close()
        assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in head
        assert f"content-length: {len(body)}".encode() in head
        assert json.loads(body)["error"]["type"] == "ServiceUnavailableError"
        writer.write(b"more\r\n")
        assert b"more" in await reader.readuntil(b"more\r\n")
        writer.close()
        while state.connections:
            await asyncio.sleep(0)
        reader, writer = await ask(port)
        assert await reader.readline() == b"GET /health HTTP/1.1\r\n"
        writer.close()


async def test_one_that_says_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mysglang.srt.entrypoints.crowd.LINGER_S", 0.02)
    async with reception(most=0) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
        writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_files_are_left_for_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 1024))
    assert 100 < most_connections() < 768
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65536, 65536))
    assert 60_000 < most_connections() < 65536 - 1024
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (8, 8))
    assert most_connections() == 1
