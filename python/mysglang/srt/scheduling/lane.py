"""Lanes: the requests that decode together, and the step of theirs that is in flight. A slot knows its lane.

    lane 0   rows 3 1 4      in flight: step n
    lane 1   rows 2 5        in flight: step n + 1

The steps of one lane come one after another; those of different lanes are independent. There is one lane, or as many
as a pipeline has stages, so that all stages work at the same time.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.batch import Launched
from mysglang.srt.scheduling.request import Req


class Lane:
    """`slots` in the order of joining: another array whenever somebody joined or left, the same while nobody did."""

    def __init__(self) -> None:
        self.slots: Slots = np.zeros(0, dtype=np.int64)
        """Requests whose prompt is computed."""
        self.chunked: Req | None = None
        """A request whose prompt is half computed. Its next chunk comes before any other prefill; it holds its slot and
        pages meanwhile.
        """
        self.pending: Launched | None = None
        """The step in flight, whose result is not applied."""
        self.short = False
        """Whether memory lacked for the next token of the rows when the step in flight was already there."""
        self.late = False
        """Whether its rows cannot be planned before their lengths are known, which the step in flight tells."""
        self.decodes = False
        """Whether rows decode in the step that was planned last. Nobody's prompts may hold them up then."""
        self.waited = 0
        """Prompt tokens that were planned since the rows had their last step."""

    def join(self, slots: Slots) -> None:
        """Requests whose prompt is computed start to decode."""
        self.slots = np.concatenate([self.slots, slots])

    def leave(self, slot: int) -> None:
        """A request ended or was retracted."""
        if self.chunked is not None and self.chunked.slot == slot:
            self.chunked = None
        self.slots = self.slots[self.slots != slot]

    @property
    def size(self) -> int:
        """Requests that hold a slot."""
        return len(self.slots) + (self.chunked is not None)


class Lanes:
    """All lanes of a scheduler. What concerns every request that runs, whatever its lane, is asked here."""

    def __init__(self, num_slots: int, count: int = 1) -> None:
        self.all = tuple(Lane() for _ in range(count))
        self._of = [self.all[0]] * num_slots
        """By slot; true of a slot that is open."""

    def enter(self, slot: int, lane: Lane) -> None:
        """A request that got this slot will decode in `lane`."""
        self._of[slot] = lane

    def leave(self, slot: int) -> None:
        """The request in this slot ended or was retracted."""
        self._of[slot].leave(slot)

    @property
    def slots(self) -> Slots:
        """Those that decode, one lane after another. Where there is one lane, its own array."""
        first, *others = self.all
        return np.concatenate([first.slots, *(lane.slots for lane in others)]) if others else first.slots

    @property
    def chunked(self) -> list[Req]:
        """Requests whose prompt is half computed."""
        return [lane.chunked for lane in self.all if lane.chunked is not None]

    @property
    def size(self) -> int:
        """Requests that hold a slot."""
        return sum(lane.size for lane in self.all)

    @property
    def decode(self) -> bool:
        """Whether rows of any lane do, in the step that was planned last for it."""
        return any(lane.decodes for lane in self.all)

    def share(self, coming: int) -> int:
        """Requests that each lane holds at most if so many come to those that are there: lanes of equal size keep all
        stages of a pipeline busy.
        """
        return -(-(self.size + coming) // len(self.all))

    def rest(self) -> None:
        """There is nothing to do."""
        for lane in self.all:
            lane.decodes = False

    @property
    def in_flight(self) -> bool:
        """Whether a step was launched whose result is not applied."""
        return any(lane.pending is not None for lane in self.all)
