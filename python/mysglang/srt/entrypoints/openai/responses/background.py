"""BackgroundJobs: answers that nobody waits for, so many at a time. Knows neither requests nor responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from mysglang.srt.errors import Overloaded, RequestError, WorkerDied

logger = logging.getLogger(__name__)

MAX_JOBS = 1000


class BackgroundJobs:
    """By name. What runs when the server ends, ends with it."""

    def __init__(self, max_jobs: int = MAX_JOBS) -> None:
        self._max_jobs = max_jobs
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[None, None, None], failed: Callable[[BaseException], None]) -> None:
        """Run `work`; `failed` is told what it raised. Raises Overloaded."""
        if len(self._running) >= self._max_jobs:
            work.close()
            raise Overloaded(f"{self._max_jobs} background responses are being worked on.")

        def done(task: asyncio.Task[None]) -> None:
            # A job that was stopped has no entry any more, and nobody wants to hear of it.
            known = self._running.pop(name, None) is not None
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            if not isinstance(error, RequestError | WorkerDied):
                logger.error("a background response failed", exc_info=error)
            if known:
                failed(error)

        self._running[name] = task = asyncio.create_task(work, name=name)
        task.add_done_callback(done)

    def stop(self, name: str) -> bool:
        """Cancel it; whether it was still running."""
        task = self._running.get(name)
        if task is None or task.done():
            return False
        del self._running[name]
        return task.cancel()
