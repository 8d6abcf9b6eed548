"""TextPool: work on text (tokenizing, rendering) in a few threads, off the event loop.

Long texts have threads of their own, so that a short prompt never waits behind a megabyte; and what takes less time
than handing it to a thread is done at once. API keys take turns for the threads. Knows no tokenizer.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Generic, TypeVar

from mysglang.srt.managers.caller import CALLER
from mysglang.srt.utils.fair_turns import FairTurns
from mysglang.srt.utils.quiet_heap import QUIET_HEAP

QUICK_TEXT = 1 << 10
"""Below this many characters or tokens (some tenth of a millisecond of work) a text is not worth a thread."""

LONG_TEXT = 1 << 15
"""From this many characters or tokens on (some milliseconds of work) a text counts as long."""

NUMBER = 16
"""Writing a number as JSON takes about as long as that many characters of text."""

THREADS = 2
"""Threads of each kind."""

SWITCH_S = 1e-3
"""After which a thread lets the event loop's go on, if it waits; Python's own default is five times as long."""

Result = TypeVar("Result")


class WorkDropped(Exception):
    """Raised in work whose result no caller waits for any more."""


class _Job(Generic[Result]):
    """Work in a thread, which checks there if a caller still waits for it."""

    def __init__(self, work: Callable[[], Result], during: AbstractContextManager[None]) -> None:
        self._work = work
        self._during = during
        self.is_dropped = False

    def __call__(self) -> Result:
        _THREAD.job = self
        try:
            with self._during:
                return self._work()
        finally:
            _THREAD.job = None


class _Thread(threading.local):
    job: _Job[Any] | None = None


_THREAD = _Thread()


def checkpoint() -> None:
    """Raises WorkDropped in a thread of a pool once no caller waits for its result. Called between pieces of long work;
    elsewhere it does nothing.
    """
    job = _THREAD.job
    if job is not None and job.is_dropped:
        raise WorkDropped


class _Threads:
    """A few threads, for which API keys take turns."""

    def __init__(self, name: str, during: AbstractContextManager[None] | None = None) -> None:
        """`during`: a context in which each thread runs its work."""
        self._during = nullcontext() if during is None else during
        self._executor = ThreadPoolExecutor(THREADS, name)
        self._turns = FairTurns(THREADS)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Returns the result or exception of `work`. If cancelled before it began, the work never begins; later, it
        ends at a checkpoint.
        """
        loop, key = asyncio.get_running_loop(), CALLER.get().api_key
        await self._turns.enter(key)

        def leave(_: Future[Result]) -> None:
            # The loop may be closed by the time at which a thread is done.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._turns.leave, key)

        job = _Job(work, self._during)
        try:
            future = self._executor.submit(job)
        except RuntimeError:
            self._turns.leave(key)
            raise
        # A thread is occupied until its work ends, even if no caller waits for the result.
        future.add_done_callback(leave)
        try:
            return await asyncio.wrap_future(future)
        finally:
            job.is_dropped = True
            # An error's traceback holds this frame, and the future holds the error: a cycle would keep what the work
            # held, which may be 30 MB, until some collection.
            del future, job

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class TextPool:
    """Runs functions that release the GIL for most of their time, or let it go between short pieces."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._short = _Threads("text")
        self._long = _Threads("long-text", QUIET_HEAP)

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Returns the result or exception of `work`; `size` is the length of its text.

        Cancelled, the work is dropped: at once if it waits, and at its next `checkpoint` if it runs.
        """
        if size < QUICK_TEXT:
            return work()
        return await (self._long if size >= LONG_TEXT else self._short).run(work)

    async def run_if_long(self, size: int, work: Callable[[], Result]) -> Result:
        """Runs `work` in the pool, or at once if its text is short."""
        return await self.run(size, work) if size >= LONG_TEXT else work()

    async def run_if_many(self, numbers: int, work: Callable[[], Result]) -> Result:
        """Run `work` on log-probabilities and the like. It keeps the GIL, and releases it between its pieces."""
        return await self.run(LONG_TEXT, work) if self.is_many(numbers) else work()

    @staticmethod
    def is_many(numbers: int) -> bool:
        """True if work on that many numbers is worth a thread."""
        return numbers * NUMBER >= LONG_TEXT

    def close(self) -> None:
        """Drops waiting work. Work that runs goes on in its thread, and is not waited for."""
        self._short.close()
        self._long.close()
