"""Policies: in which order waiting requests are tried. One class each; a policy reads no clock and no random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mysglang.srt.scheduling.request import Req

PrefixLength = Callable[[Req], int]
"""How many leading tokens of a request are in the prefix cache now."""

LPM_QUEUE_LIMIT = 128
"""Above this many waiting requests, looking every prefix up costs more than the order gains."""


class SchedulePolicy(Protocol):
    """Orders the waiting queue."""

    def order(self, waiting: Sequence[Req]) -> Sequence[Req]:
        """The requests, those to try first in front. `waiting` is in the order of arrival and stays as it is."""
        ...


class Fcfs:
    """First come, first served."""

    def order(self, waiting: Sequence[Req]) -> Sequence[Req]:
        return waiting


class LongestPrefixMatch:
    """Those with the longest cached prefix first, so that it is used before it is evicted."""

    def __init__(self, prefix_length: PrefixLength) -> None:
        self._prefix_length = prefix_length

    def order(self, waiting: Sequence[Req]) -> Sequence[Req]:
        if len(waiting) > LPM_QUEUE_LIMIT:
            return waiting
        return sorted(waiting, key=self._prefix_length, reverse=True)


class ByPriority:
    """The largest priority first, or the smallest; of equals as another policy says. Nobody who runs makes room."""

    def __init__(self, among_equals: SchedulePolicy, *, low_first: bool = False) -> None:
        self._among_equals = among_equals
        self._low_first = low_first

    def order(self, waiting: Sequence[Req]) -> Sequence[Req]:
        ordered = self._among_equals.order(waiting)
        return sorted(ordered, key=lambda req: req.priority if self._low_first else -req.priority)


POLICIES: dict[str, Callable[[PrefixLength], SchedulePolicy]] = {"fcfs": lambda _: Fcfs(), "lpm": LongestPrefixMatch}
"""By their names on the command line."""
