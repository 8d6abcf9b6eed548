"""Clients without a key that never come to the end of a head, on a whole server: little memory, quick probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from fixtures.patience import PATIENCE_S, until
from fixtures.server_process import ServerProcess

CLIENTS = 1000
CPU_S = 0.02
"""Seconds of the processor for each client, a tenth of which is measured."""
AT_ONCE = 20
SENT_BY_EACH = 4 << 20
GROWTH = 48 << 20
"""Bytes of memory that may be gone after all: what the allocator keeps for the next ones."""

GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = (
    b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)
ENDLESS: Sequence[tuple[bytes, bytes]] = (
    (b"GET /", b"a" * 65_536),
    (GET, b"a:\r\n" * 16_384),
    (GET + b"a: ", b"b" * 65_536),
    (CHUNKED + b"\r\n1;", b"a" * 65_536),
    (CHUNKED + b"\r\n0\r\n", b"a: b\r\n" * 10_922),
)


async def send_without_end(address: tuple[str, int], begin: bytes, more: bytes) -> bytes:
    """The status line that the server sends to a client which goes on sending, up to 4 MiB, until it is cut off."""
    reader, writer = await asyncio.open_connection(*address)
    answered = asyncio.create_task(reader.readline())
    try:
        writer.write(begin)
        for _ in range(SENT_BY_EACH // len(more)):
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(0)
            if answered.done():
                break
        async with asyncio.timeout(PATIENCE_S):
            return await answered
    except ConnectionError:
        return b""
    finally:
        answered.cancel()
        await asyncio.gather(answered, return_exceptions=True)
        writer.transport.abort()


@asynccontextmanager
async def probed(url: str) -> AsyncIterator[None]:
    """`/health` answers 200 all the while."""
    over = asyncio.Event()

    async def probe() -> int:
        probes = 0
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            while not over.is_set():
                assert (await client.get("/health")).status_code == 200
                probes += 1
        return probes

    probing = asyncio.create_task(probe())
    try:
        yield
    finally:
        over.set()
        assert await probing > 5


async def storm(server: ServerProcess) -> None:
    """A thousand clients that send heads without end."""
    address = httpx.URL(server.url)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> bytes:
        async with limit:
            return await send_without_end((address.host, address.port or 80), *ENDLESS[number % len(ENDLESS)])

    async with probed(server.url):
        lines = await asyncio.gather(*map(one, range(CLIENTS)))
    # Some send on until the system forgets the answer that they have not read.
    statuses = {line.split(b" ")[1] for line in lines if line}
    assert statuses == {b"414", b"431"}, statuses


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def grown(process: psutil.Process, before: int) -> int:
    return process.memory_info().rss - before


async def wait_for_memory(process: psutil.Process, before: int) -> None:
    await until(lambda: grown(process, before) <= GROWTH)


@pytest.mark.promise(41)
async def test_promise_41_a_thousand_endless_heads_cost_little(tiny_server: ServerProcess) -> None:
    """In memory, and in time of the processor, of which probes want some too. `test_http_protocol.py` bounds how long
    one of them holds up the others.
    """
    process = psutil.Process(tiny_server.popen.pid)
    before, cpu_before = process.memory_info().rss, cpu_seconds(process)
    await storm(tiny_server)
    assert (cpu_seconds(process) - cpu_before) / CLIENTS < CPU_S
    await wait_for_memory(process, before)


@pytest.mark.promise(41)
async def test_promise_41_a_thousand_unfinished_heads_hold_little(tiny_server: ServerProcess) -> None:
    """Each as large as a head may be."""
    address = httpx.URL(tiny_server.url)
    process = psutil.Process(tiny_server.popen.pid)
    before = process.memory_info().rss
    head = GET + b"a: b\r\n" * 200 + b"c: " + b"d" * 60_000
    writers = []
    for _ in range(CLIENTS):
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(head)
        await writer.drain()
        writers.append(writer)
    async with httpx.AsyncClient(base_url=tiny_server.url, timeout=PATIENCE_S) as client:
        assert (await client.get("/health")).status_code == 200
    assert grown(process, before) < CLIENTS * (128 << 10)
    for writer in writers:
        writer.transport.abort()
    await wait_for_memory(process, before)
