"""TextPool: work on text (tokenizing, rendering) in a few threads, off the event loop.

Long texts have threads of their own, so that a short prompt never waits behind a megabyte; and what takes less time
than handing it to a thread is done at once. Knows no tokenizer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

QUICK_TEXT = 1 << 10
"""Below this many characters or tokens (some tenth of a millisecond of work) a text is not worth a thread."""

LONG_TEXT = 1 << 15
"""From this many characters or tokens on (some milliseconds of work) a text is long."""

NUMBER = 16
"""To tell a number in JSON is about as much work as so many characters of text."""

THREADS = 2
"""Of each kind."""

SWITCH_S = 1e-3
"""After which a thread lets the event loop's go on, if it waits; Python's own default is five times as long."""

Result = TypeVar("Result")


class TextPool:
    """Runs functions that release the GIL for most of their time."""

    def __init__(self) -> None:
        sys.setswitchinterval(SWITCH_S)
        self._short = ThreadPoolExecutor(THREADS, "text")
        self._long = ThreadPoolExecutor(THREADS, "long-text")

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises; `size` is the length of its text. Cancelled, its result is dropped."""
        if size < QUICK_TEXT:
            return work()
        pool = self._long if size >= LONG_TEXT else self._short
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def run_if_long(self, size: int, work: Callable[[], Result]) -> Result:
        """The same for work that is so quick over a short text that it is done at once."""
        return await self.run(size, work) if size >= LONG_TEXT else work()

    async def run_if_many(self, numbers: int, work: Callable[[], Result]) -> Result:
        """The same for work on log-probabilities and the like. It keeps the GIL, and lets it go between its pieces."""
        return await self.run(LONG_TEXT, work) if self.is_many(numbers) else work()

    @staticmethod
    def is_many(numbers: int) -> bool:
        """Whether work on so many is worth a thread."""
        return numbers * NUMBER >= LONG_TEXT

    def close(self) -> None:
        """Finish what runs; drop what waits."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
