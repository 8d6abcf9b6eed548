"""Arrival: how long a request may take to arrive. A client that begins one and does not go on would hold its
connection, and what came of the request, for ever; enough of them, and no other client gets a connection.

| part | limit |
| --- | --- |
| head | `limit_s` in all, however steadily it comes |
| body | `limit_s` for the first 256 KiB and again for each further 256 KiB; and 16 KiB within each `limit_s` |

Knows neither HTTP nor the connection but by what it is told. A request that arrives at once costs no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_BYTES = 16 << 10
"""Bytes of a body that must come within each `limit_s`."""

BYTES_PER_LIMIT = 256 << 10
"""Bytes of a body that must come within each `limit_s` on average."""


class Arrival:
    """Limits how long the requests of one connection may take to arrive, one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, give_up: Callable[[], bool]) -> None:
        """`give_up` is called when a request takes too long. It returns False if the client is not to blame, which
        gives the request as much time again.
        """
        self._loop = loop
        self._limit_s = limit_s
        self._give_up: Callable[[], bool] | None = give_up
        self._in_head = True
        self._bytes = 0
        """Bytes of the body that came so far."""
        self._due = 0
        """Bytes of the body that must have come at the next look."""
        self._due_on_average = 0
        self._watch: asyncio.TimerHandle | None = None

    def came(self, size: int, *, in_head: bool, whole: bool) -> None:
        """Count `size` bytes. `in_head`: the head is not complete; `whole`: nothing of a request is missing."""
        if whole:
            if self._watch is not None:
                self.stop()
        elif in_head or self._watch is None or self._in_head:
            self._begin(size, in_head=in_head)
        else:
            self._bytes += size

    def stop(self) -> None:
        """Ends the watch, because no request is on its way any more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def end(self) -> None:
        """Ends the watch, because the connection is over. Nothing here refers to it any more."""
        self.stop()
        self._give_up = None

    def _begin(self, size: int, *, in_head: bool) -> None:
        if self._watch is not None and in_head and self._in_head:
            return
        self.stop()
        self._in_head = in_head
        self._bytes, self._due, self._due_on_average = size, LEAST_BYTES, BYTES_PER_LIMIT
        self._look_later()

    def _look_later(self) -> None:
        self._watch = self._loop.call_later(self._limit_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._in_head and self._bytes >= max(self._due, self._due_on_average):
            self._due_on_average += BYTES_PER_LIMIT
        elif self._give_up is None or self._give_up():
            return
        self._due = self._bytes + LEAST_BYTES
        self._look_later()
