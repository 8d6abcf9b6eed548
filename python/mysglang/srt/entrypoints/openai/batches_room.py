"""Room: when a line of a batch may begin. Batches take what other requests leave free, and never all of that."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from mysglang.srt.entrypoints.front import Manager

LOOK_S = 0.02
"""How often it is looked whether there is room, beside the moments in which a line ends."""


class Room:
    """Lines come in one after the other, in the order in which they ask: several batches take turns.

    None comes in while as many as three quarters of what the engine runs at once are open, whoever asked for them: the
    rest is for whoever comes next. Nor while requests of others wait in the engine, for memory or a turn.
    """

    def __init__(self, manager: Manager, max_in_flight: int, max_running_requests: int) -> None:
        """`max_in_flight`: lines at once, of all batches together."""
        self._manager = manager
        self._max_in_flight = max_in_flight
        self._share = max(1, max_running_requests * 3 // 4)
        self._in_flight = 0
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    async def enter(self) -> None:
        """Returns once a line may begin; `leave` must follow when it has ended."""
        async with self._turn:
            while not self._is_free():
                self._left.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._left.wait()
            self._in_flight += 1

    def leave(self) -> None:
        self._in_flight -= 1
        self._left.set()

    def _is_free(self) -> bool:
        if self._in_flight >= self._max_in_flight:
            return False
        # A line that has just come in is not open at the manager yet.
        open_requests = max(self._manager.open_requests, self._in_flight)
        return open_requests < self._share and not self._others_wait(open_requests)

    def _others_wait(self, open_requests: int) -> bool:
        beat = self._manager.signs.heartbeat
        return open_requests > self._in_flight and beat is not None and beat.num_waiting_reqs > 0
