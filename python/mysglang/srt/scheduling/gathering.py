"""Gathering: whether the rest of a batch is worth a moment's wait.

A front sends a large batch as it is tokenized, and each request says how many of its call are still to come. A step
that began with the first of them alone would waste most of itself; one that waited for the last would leave the device
idle. So a step of prompts waits until those that are there fill it. Reads no clock, and never waits itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.messages.fanout import call_of
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.waiting_queue import WaitingQueue


class Gathering:
    """Knows which calls are not complete, and how much of a step those who wait would fill."""

    def __init__(self, waiting: WaitingQueue, step_tokens: int, cached: Callable[[Req], int]) -> None:
        """`step_tokens`: prompt tokens of a full step; `cached`: tokens of a request that are in the prefix cache."""
        self._waiting = waiting
        self._step_tokens = step_tokens
        self._cached = cached
        self.coming: set[str] = set()
        """Calls of which there are requests to come."""
        self._whole = False
        """Whether a call came to its end since the last step was planned, be it of one request. It waits for nobody."""
        self.arrivals: list[Req] = []
        """Since the last step was planned."""
        self._unread: list[Req] = []
        """Of batches that are not complete, those whose prompts nobody has looked at."""
        self._last: tuple[str, Ints] | None = None
        """Namespace and prompt of the last one that somebody has."""

    def arrived(self, req: Req, to_come: int) -> None:
        """A request came, and of its call there are so many `to_come`."""
        self.arrivals.append(req)
        if to_come:
            self.coming.add(call_of(req.rid))
            self._unread.append(req)
            return
        self._whole = True
        if self.coming:
            self.coming.discard(call_of(req.rid))
            self._unread.append(req)
            if not self.coming:
                self._forget()

    def planned(self) -> None:
        """Who came is among those who wait now, or waits for something else."""
        self.arrivals.clear()
        self._whole = False

    def give_up(self) -> None:
        """Nobody came for so long that no step should wait for them."""
        self.coming.clear()
        self._forget()

    @property
    def worth_waiting(self) -> bool:
        """Whether more are to come, and those that are there do not fill a step and are parts of batches all."""
        return bool(self.coming) and not self._whole and not self._fills_step()

    def _fills_step(self) -> bool:
        for req in self._unread:
            self._estimate(req)
        self._unread.clear()
        tokens = 0
        for req in chain(self.arrivals, self._waiting):
            tokens += req.fresh
            if tokens >= self._step_tokens:
                return True
        return False

    def _estimate(self, req: Req) -> None:
        """What of its prompt nobody has computed, nor will have when the one before it is."""
        known = self._cached(req)
        if self._last is not None and self._last[0] == req.extra_key:
            known = max(known, common_prefix(self._last[1], req.ids))
        req.fresh = len(req.ids) - min(known, req.match_limit)
        self._last = (req.extra_key, req.ids)

    def _forget(self) -> None:
        self._unread.clear()
        self._last = None


def common_prefix(one: Ints, other: Ints) -> int:
    """Tokens in which both begin alike."""
    size = min(len(one), len(other))
    if not size or one[0] != other[0]:
        return 0
    differs = one[:size] != other[:size]
    first = int(differs.argmax())
    return first if differs[first] else size
