"""Room: when a line of a batch may begin. Batches take what other requests leave free, and never all of that."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.utils.fair_turns import FairQueue

LOOK_S = 0.02
"""Seconds between two checks whether there is room, in addition to the check when a line ends."""


class Room:
    """Admits lines of batches. API keys take turns: a free place goes to the key that has the fewest lines inside.
    Lines of one key come in one after the other, in the order in which they ask, so several batches take turns.

    No line is admitted while open lines of all batches fill three quarters of the engine's slots: the rest is for other
    requests. No line is admitted while other requests wait in the engine, for memory or a turn.
    """

    def __init__(self, manager: Manager, max_in_flight: int, max_running_requests: int) -> None:
        """`max_in_flight`: the largest number of lines that run at once, of all batches together."""
        self._manager = manager
        self._max_in_flight = max_in_flight
        self._share = max(1, max_running_requests * 3 // 4)
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._waiting = 0
        self._left = asyncio.Event()
        self._admitting: asyncio.Task[None] | None = None

    async def enter(self, key: str) -> None:
        """Returns once a line of `key` may begin; `leave` must follow when it has ended."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.push(key, turn)
        self._waiting += 1
        if self._admitting is None or self._admitting.done():
            self._admitting = asyncio.create_task(self._admit(), name="batch lines")
        try:
            await turn
        except asyncio.CancelledError:
            # The place may have been given in the same moment.
            if not turn.cancelled():
                self.leave(key)
            raise
        finally:
            self._waiting -= 1

    def leave(self, key: str) -> None:
        self._queue.done(key)
        self._left.set()

    async def _admit(self) -> None:
        """Let lines in for as long as some wait."""
        while self._waiting and self._queue:
            if self._is_free():
                key, turn = self._queue.pop()
                if turn.cancelled():
                    self._queue.done(key)
                    continue
                turn.set_result(None)
                # A line that was admitted is counted before the next one is admitted.
                await asyncio.sleep(0)
                continue
            self._left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._left.wait()

    def _is_free(self) -> bool:
        in_flight = self._queue.at_work
        if in_flight >= self._max_in_flight:
            return False
        # A line that has just come in is not open at the manager yet.
        open_requests = max(self._manager.open_requests, in_flight)
        return open_requests < self._share and not self._others_wait(open_requests, in_flight)

    def _others_wait(self, open_requests: int, in_flight: int) -> bool:
        beat = self._manager.signs.heartbeat
        return open_requests > in_flight and beat is not None and beat.num_waiting_reqs > 0
