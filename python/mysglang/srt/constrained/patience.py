"""Patience: measures the steps of one grammar, and decides when they take too long.

A grammar is tried out before it is used (`compile_process.try_out`), but an ambiguous one may take its time only later,
and then more with each token, while every other request waits. So each step is timed. Two slow ones soon after each
other end the answers of that grammar, and it is refused from then on.

Time passes differently on each rank, and all must end these answers in the same turn. So what was measured changes
nothing by itself: it is told (`GrammarQueue.look`), and `over` is set when it is learned.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLOW_S = 0.03
"""Seconds of the thread's own time, so that a busy machine makes no grammar slow. A usual step takes a thousandth."""
ENOUGH = 1.5
FORGIVEN = 0.01
"""The part of a slow step that each quick step makes up for."""


class Patience:
    """Counts the slow masks of one grammar, for all answers that follow it."""

    __slots__ = ("__weakref__", "_slow", "_tell", "clock", "over")

    def __init__(self, tell: Callable[[], None], clock: Callable[[], float] = time.thread_time) -> None:
        """`tell` is called once, when the steps have been slow for long enough. `clock`: in seconds."""
        self.clock = clock
        self.over = False
        """True once the scheduler has learned that: it ends the answers of this grammar."""
        self._tell = tell
        self._slow = 0.0

    def took(self, seconds: float) -> None:
        """Counts the seconds that one step took."""
        if self._slow > ENOUGH:
            return
        if seconds > SLOW_S:
            self._slow += 1
            if self._slow > ENOUGH:
                self._tell()
        elif self._slow > 0:
            self._slow = max(0.0, self._slow - FORGIVEN)


def endless() -> Patience:
    """Returns patience with a grammar that is never refused for slowness."""
    return Patience(lambda: None)
