"""Breather: lets the others of an event loop have their turn between pieces of work that are many together."""

from __future__ import annotations

import asyncio
import time

HELD_S = 0.002
"""How long work goes on without letting anybody else have a turn; others may feel a piece more."""


class Breather:
    """Decides when one worker lets others run. The worker asks it between two pieces of work."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    @property
    def due(self) -> bool:
        """True if the others have waited long enough."""
        return time.perf_counter() - self._since >= HELD_S

    def rested(self) -> None:
        """The others had their turn just now."""
        self._since = time.perf_counter()

    async def rest(self) -> None:
        """Let them have it, if it is time."""
        if self.due:
            await asyncio.sleep(0)
            self.rested()
