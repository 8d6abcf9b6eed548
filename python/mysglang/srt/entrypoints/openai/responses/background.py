"""BackgroundJobs: answers that nobody waits for, so many at a time. API keys share the room for them.

Knows neither requests nor responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from mysglang.srt.errors import Overloaded, RequestError, WorkerDied
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.utils.shared_room import SharedRoom

logger = logging.getLogger(__name__)

MAX_JOBS = 1000


class BackgroundJobs:
    """By name. What runs when the server ends, ends with it."""

    def __init__(self, num_keys: int = 1, max_jobs: int = MAX_JOBS) -> None:
        self._room = SharedRoom(max_jobs, num_keys)
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[None, None, None], failed: Callable[[BaseException], None]) -> None:
        """Run `work`; `failed` is told what it raised. Raises Overloaded."""
        key = CALLER.get().api_key
        if not self._room.has_room(key, 1):
            work.close()
            raise Overloaded("Too many background responses are being worked on.")
        self._room.take(key, 1)

        def done(task: asyncio.Task[None]) -> None:
            self._room.give(key, 1)
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
