"""Arrival: how long a request may take to arrive. A client that begins one and does not go on would hold its
connection, and what came of the request, for ever; enough of them, and nobody else gets a connection.

Knows neither HTTP nor the connection but by what it is told. A request that arrives at once costs no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_BYTES = 16 << 10
"""Who sends as much within the time that it has goes on sending."""


class Arrival:
    """Of the requests of one connection, one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, give_up: Callable[[], None]) -> None:
        """`give_up` is called when a request was begun and next to nothing of it came for so many seconds."""
        self._loop = loop
        self._limit_s = limit_s
        self._give_up = give_up
        self._bytes = 0
        self._watch: asyncio.TimerHandle | None = None

    def came(self, size: int, *, whole: bool) -> None:
        """So many bytes; `whole`: nothing of a request is missing."""
        if whole:
            self.stop()
            return
        self._bytes += size
        if self._watch is None:
            self._look_later()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look_later(self) -> None:
        self._bytes = 0
        self._watch = self._loop.call_later(self._limit_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._bytes >= LEAST_BYTES:
            self._look_later()
        else:
            self._give_up()
