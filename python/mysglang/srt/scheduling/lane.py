"""Lanes: the requests that decode together, and their step that is in flight. A slot knows its lane.

    lane 0   rows 3 1 4      in flight: step n
    lane 1   rows 2 5        in flight: step n + 1

The steps of one lane come one after another; those of different lanes are independent. There is one lane, or as many
as a pipeline has stages, so that all stages work at the same time.

Sometimes the result of the step in flight must be applied before its lane can go on (`settle_first`):

    usual      launch n+1 │ apply n │ launch n+2 │ …       the device always has work
    settled    apply n │ launch n+1 │ …                    the device waits for the host once

Each reason is counted under its name (`sglang:settled_first_total`). How often it happens changes how fast answers
come, never what they say.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.batch import Launched, ScheduleBatch
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable


class Lane:
    """The requests that decode together, and their step in flight."""

    def __init__(self) -> None:
        self.slots: Slots = np.zeros(0, dtype=np.int64)
        """Slots of the requests whose prompt is computed, in the order of joining. The same array while no request
        joins or leaves, and a new one when one does: what depends on the rows alone is kept by its identity.
        """
        self.chunked: Req | None = None
        """A request whose prompt is half computed. Its next chunk comes before any other prefill; it holds its slot and
        pages until then.
        """
        self.pending: Launched | None = None
        """The step in flight, whose result is not applied."""
        self.short = False
        """True if memory for the next token of the rows was short while a step was in flight."""
        self.late = False
        """True if its rows cannot be planned before the step in flight has returned their lengths."""
        self.decodes = False
        """True if rows decode in the step that was planned last. Then no step may wait for further prompts."""
        self.waited = 0
        """Prompt tokens that were planned since the last decode step of the rows."""

    def join(self, slots: Slots) -> None:
        """Adds requests whose prompt is computed, so that they decode."""
        self.slots = np.concatenate([self.slots, slots])

    def leave(self, slot: int) -> None:
        """Removes a request that ended or was retracted."""
        if self.chunked is not None and self.chunked.slot == slot:
            self.chunked = None
        self.slots = self.slots[self.slots != slot]

    @property
    def size(self) -> int:
        """Number of requests that hold a slot."""
        return len(self.slots) + (self.chunked is not None)


class Lanes:
    """All lanes of a scheduler. It answers questions about all running requests, whatever their lanes."""

    def __init__(self, num_slots: int, count: int = 1) -> None:
        self.all = tuple(Lane() for _ in range(count))
        self._of = [self.all[0]] * num_slots
        """Slot -> its lane; valid for open slots."""

    def enter(self, slot: int, lane: Lane) -> None:
        """Assigns a request that got this slot to `lane`, in which it will decode."""
        self._of[slot] = lane

    def leave(self, slot: int) -> None:
        """Removes the request in this slot, which ended or was retracted."""
        self._of[slot].leave(slot)

    @property
    def slots(self) -> Slots:
        """Slots that decode, one lane after another. With one lane it is the lane's own array."""
        first, *others = self.all
        return np.concatenate([first.slots, *(lane.slots for lane in others)]) if others else first.slots

    @property
    def chunked(self) -> list[Req]:
        """Requests whose prompt is half computed."""
        return [lane.chunked for lane in self.all if lane.chunked is not None]

    @property
    def size(self) -> int:
        """Number of requests that hold a slot."""
        return sum(lane.size for lane in self.all)

    @property
    def decode(self) -> bool:
        """True if rows of any lane decode in the step that was planned last for it."""
        return any(lane.decodes for lane in self.all)

    def share(self, coming: int) -> int:
        """Returns the largest number of requests that each lane may hold if `coming` more are added to those that run.
        Lanes of equal size keep all stages of a pipeline busy.
        """
        return -(-(self.size + coming) // len(self.all))

    def rest(self) -> None:
        """Marks every lane as not decoding, because the scheduler is idle."""
        for lane in self.all:
            lane.decodes = False

    @property
    def in_flight(self) -> bool:
        """True if a step was launched whose result is not applied."""
        return any(lane.pending is not None for lane in self.all)


SettleReason = Literal["pause", "memory", "lengths", "limit", "mask"]


def settle_first(lane: Lane, batch: ScheduleBatch | None, table: RequestTable, *, halted: bool) -> SettleReason | None:
    """Returns why the result of the step in flight of `lane` must be applied first; None if it need not.

    `batch`: the step that was just planned, or None. `halted`: no step may be launched for the moment.
    """
    if lane.pending is None:
        return None
    if batch is not None:
        # The step is launched at once, but a mask for its tokens needs the tokens of the step before.
        return "mask" if table.constrained.count and table.waits_for_mask(batch.slots, batch.yields) else None
    if halted:
        return "pause"
    if lane.short:
        return "memory"
    if lane.late:
        # Drafts were tried, and the worker does not take rows whose length only the device knows.
        return "lengths"
    # All rows have as many tokens as they may; whether they end earlier, only the result says.
    return "limit" if len(lane.slots) else None
