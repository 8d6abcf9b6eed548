"""AwakeClock: monotonic seconds less the pauses in which this process could not run.

SIGSTOP, a suspended container and a frozen virtual machine stop a process without its knowledge. A deadline that counts
such a pause ends work that had no chance to finish, and a watchdog that counts it ends a healthy server. A part of the
process ticks this clock a few times per second; a gap between two ticks that is much longer is a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TICK_S = 0.25
"""Seconds between two ticks."""
LATE_S = 0.25
"""A tick may come so many seconds late, on a busy machine, before the time counts as a pause."""
RESOLUTION_S = 0.01
"""A timer may be so much too early."""


class AwakeClock:
    """A monotonic clock that leaves out the time in which the process was paused. Without a ticking thread it is the
    monotonic clock.

    One thread ticks; any thread may read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # One tuple, since a reader in another thread must never see one of the two without the other.
        self._state: tuple[float | None, float] = (None, 0.0)
        """(time of the last tick, or None without a ticking thread; total length of all pauses)."""

    @property
    def paused_s(self) -> float:
        """Seconds of all pauses so far, the current one included, as in `now`."""
        now = self._clock()
        ticked, paused = self._state
        return paused if ticked is None else paused + max(0.0, now - ticked - TICK_S - LATE_S)

    def now(self) -> float:
        """Returns seconds without pauses. A pause is left out even if no tick has followed its end yet."""
        now = self._clock()
        ticked, paused = self._state
        return (now if ticked is None else min(now, ticked + TICK_S + LATE_S)) - paused

    def tick(self) -> None:
        """Notes that the process runs. Must be called every TICK_S seconds, until `rest`."""
        now = self._clock()
        ticked, paused = self._state
        if ticked is not None:
            paused += max(0.0, now - ticked - TICK_S - LATE_S)
        self._state = (now, paused)

    def rest(self) -> None:
        """Stops ticking: from here on all time counts again."""
        self.tick()
        self._state = (None, self._state[1])

    async def keep_ticking(self) -> None:
        """Calls `tick` for as long as this task runs."""
        try:
            while True:
                self.tick()
                await asyncio.sleep(TICK_S)
        finally:
            self.rest()


AWAKE = AwakeClock()
"""The clock of this process, for deadlines and for signs of life."""


class PauseNote:
    """Reports whether the process was paused since the last call."""

    __slots__ = ("_paused_s",)

    def __init__(self) -> None:
        self._paused_s = AWAKE.paused_s

    def take(self) -> bool:
        """Returns True once after each pause."""
        before, self._paused_s = self._paused_s, AWAKE.paused_s
        return self._paused_s > before


class AwakeTimer:
    """`loop.call_later` that leaves pauses out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._due = AWAKE.now() + delay_s
        self._handle = loop.call_later(delay_s, self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        # Without a pause, the two clocks agree to the resolution of the loop's clock.
        left = self._due - AWAKE.now()
        if left > RESOLUTION_S:
            self._handle = self._loop.call_later(left, self._look)
        else:
            self._call()


@asynccontextmanager
async def awake_timeout(limit_s: float | None) -> AsyncIterator[None]:
    """Limits the time of the block as `asyncio.timeout` does, but without counting pauses. Raises TimeoutError."""
    if limit_s is None:
        yield
        return
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as scope:
        timer = AwakeTimer(loop, limit_s, lambda: scope.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
