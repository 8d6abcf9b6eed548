"""QuietHeap: no garbage collection while many short-lived objects are made.

The garbage collector goes through all objects at once, and no other thread can run in that time. It would visit the
half million objects of one long body again and again, up to half a second each time, and find no cycle. These objects
are freed with their last reference. So long work on one is done without the collector. It has its turn whenever no such
work runs, and work that begins waits for that once the last turn is too long ago.
"""

from __future__ import annotations

import gc
import threading
import time
from types import TracebackType

LONGEST_S = 10.0
"""Seconds without the collector after which work that wants to begin waits until no other work runs."""


class QuietHeap:
    """Postpones garbage collection while many threads work: a context, entered by all of them at once. One for a
    process.
    """

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._running = 0
        self._since = 0.0
        self._was_enabled = True
        self._over = threading.Condition()

    def __enter__(self) -> None:
        with self._over:
            while self._running and time.monotonic() - self._since > self._longest_s:
                self._over.wait()
            if not self._running:
                self._since, self._was_enabled = time.monotonic(), gc.isenabled()
                gc.disable()
            self._running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._over:
            self._running -= 1
            if self._running:
                return
            if self._was_enabled:
                gc.enable()
            self._over.notify_all()


QUIET_HEAP = QuietHeap()
