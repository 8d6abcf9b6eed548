"""Turns: FairTurns gives a few places to keys in turn, however many of one key's wait; a Breather lets the others of an
event loop have their turn between pieces of work that are many together.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Waiting items by key. The next one belongs to the key that has the fewest items at work; among equals, to the key
    whose last turn was longest ago. Items of one key come out in the order in which they went in.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}
        self._at_work = Counter[str]()
        self._last_turn: dict[str, int] = {}
        """The number of each key's last turn; keys are few, so they are never forgotten."""
        self._turns = 0

    def __bool__(self) -> bool:
        """True if an item waits."""
        return bool(self._waiting)

    @property
    def at_work(self) -> int:
        """Items that were taken out and are not done."""
        return self._at_work.total()

    def push(self, key: str, item: Item) -> None:
        self._waiting.setdefault(key, deque()).append(item)

    def pop(self) -> tuple[str, Item]:
        """Returns the next item and its key, which counts as at work until `done`. Raises LookupError if none waits."""
        if not self._waiting:
            raise LookupError("nothing waits")
        key = min(self._waiting, key=lambda one: (self._at_work[one], self._last_turn.get(one, 0)))
        item = self._waiting[key].popleft()
        if not self._waiting[key]:
            del self._waiting[key]
        self._turns += 1
        self._last_turn[key] = self._turns
        self._at_work[key] += 1
        return key, item

    def done(self, key: str) -> None:
        """Notes that an item of `key` is finished."""
        self._at_work[key] -= 1
        if not self._at_work[key]:
            del self._at_work[key]


class FairTurns:
    """Admits at most `places` callers at once, with turns by key. Lives in one event loop."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    async def enter(self, key: str) -> None:
        """Returns once there is a place; `leave` must follow. If cancelled, it takes no place."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.push(key, turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            # The place may have been given in the same moment.
            if not turn.cancelled():
                self.leave(key)
            raise

    def leave(self, key: str) -> None:
        self._queue.done(key)
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._queue.at_work < self._places:
            key, turn = self._queue.pop()
            if turn.cancelled():
                self._queue.done(key)
            else:
                turn.set_result(None)


HELD_S = 0.002
"""How long work goes on without letting anybody else have a turn; others may feel a piece more."""


class Breather:
    """Says when a thread with long work must let others run. The thread asks between two pieces of work."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.perf_counter()

    @property
    def due(self) -> bool:
        """True if it is the others' turn, because they have waited long enough."""
        return time.perf_counter() - self._since >= HELD_S

    def rested(self) -> None:
        """Notes that the other threads had their turn just now."""
        self._since = time.perf_counter()

    async def rest(self) -> None:
        """Lets other work run, if it is time."""
        if self.due:
            await asyncio.sleep(0)
            self.rested()
