"""EventLog: the events of a response in the background. They can be read from any number on, during the response or
later.

Whoever reads is in nobody's way: the response goes on whether somebody listens or not. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable


class EventLog:
    """Frames, numbered from 0 as their events are."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._news = asyncio.Event()
        self._over = False
        self.nbytes = 0

    def add(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._frames.append(frame)
            self.nbytes += len(frame)
        self._tell()

    def end(self) -> None:
        """No more will come."""
        self._over = True
        self._tell()

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The frames behind the one numbered `after`, several at once where they are there, until no more will come."""
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

    def _tell(self) -> None:
        # Each reader holds the event that it waits for, so that none misses what comes while it wakes.
        self._news.set()
        self._news = asyncio.Event()
