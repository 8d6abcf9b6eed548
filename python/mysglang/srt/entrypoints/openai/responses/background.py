"""BackgroundJobs: answers that no client waits for. Their number is limited, and API keys share the room.

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
    """Background jobs by name. Jobs that run when the server ends are ended with it."""

    def __init__(self, num_keys: int = 1, max_jobs: int = MAX_JOBS) -> None:
        self._room = SharedRoom(max_jobs, num_keys)
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[None, None, None], failed: Callable[[BaseException], None]) -> None:
        """Run `work`; `failed` receives its exception. Raises Overloaded."""
        key = CALLER.get().api_key
        if not self._room.has_room(key, 1):
            work.close()
            raise Overloaded("Too many background responses are being worked on.")
        self._room.take(key, 1)

        def done(task: asyncio.Task[None]) -> None:
            self._room.give(key, 1)
            # A job that was stopped has no entry any more, and its failure is not reported.
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
