"""MemoryReturn: what a long body took is given back to the system some time after, and not only to Python.

The allocator of the C library keeps what was freed for later, and a server may wait long for another body of that size.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

DELAYS_S = (1.0, 15.0)
"""After the last long body: one that was refused is gone by then, and most answers have ended."""


class MemoryReturn:
    """Collects the wishes of several bodies to one round of giving back."""

    def __init__(self, give_back: Callable[[], None] | None = None) -> None:
        """`give_back`: runs in a thread; None for what the C library has for it."""
        self._give_back = _give_back() if give_back is None else give_back
        self._timers: list[asyncio.TimerHandle] = []

    def soon(self) -> None:
        """Give back after a while. Called on the event loop."""
        for timer in self._timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(delay, lambda: loop.run_in_executor(None, self._give_back)) for delay in DELAYS_S
        ]


def _give_back() -> Callable[[], None]:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    # Only glibc has this function.
    return (lambda: None) if trim is None else lambda: trim(0)
