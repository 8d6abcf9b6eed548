"""Data that is written in one turn leaves in one piece, in order, and is not sent to a closed connection."""

from __future__ import annotations

import asyncio
from typing import Any

from mysglang.srt.entrypoints.corked_transport import Cork, CorkedTransport


class Taking:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.taken.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


def corked() -> tuple[CorkedTransport, Taking]:
    taking: Any = Taking()
    return CorkedTransport(taking, Cork()), taking


async def test_one_piece_for_each_turn() -> None:
    transport, taking = corked()
    transport.write(b"a")
    transport.write(b"b")
    assert taking.taken == []
    await asyncio.sleep(0)
    transport.write(b"c")
    transport.flush()
    transport.write(b"d")
    await asyncio.sleep(0)
    assert taking.taken == [b"ab", b"c", b"d"]


async def test_one_cork_for_all() -> None:
    cork = Cork()
    takings: list[Any] = [Taking() for _ in range(3)]
    transports = [CorkedTransport(taking, cork) for taking in takings]
    for turn in range(2):
        for transport in transports[turn:]:
            transport.write(b"a")
            transport.write(b"b")
        transports[1].flush()
        await asyncio.sleep(0)
    assert [taking.taken for taking in takings] == [[b"ab"], [b"ab", b"ab"], [b"ab", b"ab"]]


async def test_what_was_written_leaves_before_the_end() -> None:
    transport, taking = corked()
    transport.write(b"a")
    transport.close()
    assert taking.taken == [b"a"] and transport.is_closing()
    transport.write(b"b")
    await asyncio.sleep(0)
    assert taking.taken == [b"a"]


async def test_nothing_leaves_after_an_abort() -> None:
    transport, taking = corked()
    transport.write(b"a")
    transport.abort()
    await asyncio.sleep(0)
    assert taking.taken == []
