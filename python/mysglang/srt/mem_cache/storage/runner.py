"""Runner: what may wait for a disk runs here, one piece after another, and not in the scheduler's loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from mysglang.srt.utils.service_thread import ServiceThread

logger = logging.getLogger(__name__)

Work = Callable[[], None]


class Runner(Protocol):
    """Runs work in order, in this thread or another."""

    def submit(self, work: Work) -> None: ...


class ThreadRunner:
    """Runs work in a thread that ends with the process."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Work] = SimpleQueue()
        ServiceThread(name, self._run)

    def submit(self, work: Work) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                logger.exception("A read or write of the KV cache's storage failed; the server continues.")
