"""Responses that no client waits for: their jobs, whose number is limited and which API keys share, and their events.

The events can be read from any number on, while the response goes on or later; readers do not delay it. Lives in one
event loop, and knows neither requests nor responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable

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
        """Runs `work` in the background; `failed` receives its exception. Raises Overloaded."""
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
                logger.error(
                    "A background response failed; its client finds the error in the stored response.", exc_info=error
                )
            if known:
                failed(error)

        self._running[name] = task = asyncio.create_task(work, name=name)
        task.add_done_callback(done)

    def stop(self, name: str) -> bool:
        """Cancels a job. Returns whether it was still running."""
        task = self._running.get(name)
        if task is None or task.done():
            return False
        del self._running[name]
        return task.cancel()


class EventLog:
    """The frames of one response's events, numbered from 0."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._news = asyncio.Event()
        self._over = False
        self.nbytes = 0

    def add(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._frames.append(frame)
            self.nbytes += len(frame)
        self._notify()

    def end(self) -> None:
        """Ends the log. Called when no further frames will come."""
        self._over = True
        self._notify()

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yields the frames after the one numbered `after`, joined where several are ready, until the log ends."""
        place = after + 1
        while True:
            news = self._news
            if place < len(self._frames):
                frames = b"".join(self._frames[place:])
                place = len(self._frames)
                yield frames
            elif self._over:
                if place == after + 1:
                    yield b""  # a stream of nothing is a stream, too
                return
            else:
                await news.wait()

    def _notify(self) -> None:
        # Each reader holds the event that it waits for, so that none misses what comes while it wakes.
        self._news.set()
        self._news = asyncio.Event()
