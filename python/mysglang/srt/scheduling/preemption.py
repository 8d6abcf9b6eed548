"""Preemption: whether those who run make room for a more urgent request that waits. Victims are retracted, not ended.

(SGLang's rule: `--priority-scheduling-preemption-threshold`.)
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.prefill_planner import PrefillPlanner
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.retraction import Retraction
from mysglang.srt.scheduling.waiting_queue import WaitingQueue


class Preemption(Protocol):
    """Asked before each step is planned."""

    def make_room(self) -> None:
        """Retract whoever must give way to the request that is next."""
        ...


class NoPreemption:
    """Who runs, runs on."""

    def make_room(self) -> None:
        pass


class PriorityPreemption:
    """The next request displaces those that it is by more than `threshold` more urgent than, if that helps it.

    The least urgent go first, of equals those that joined last, until there is a slot and memory. If all of them would
    not be enough, nobody goes.
    """

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        waiting: WaitingQueue,
        prefill: PrefillPlanner,
        retraction: Retraction,
        *,
        threshold: int,
    ) -> None:
        self._table = table
        self._kv = kv
        self._lanes = lanes
        self._waiting = waiting
        self._prefill = prefill
        self._retraction = retraction
        self._threshold = threshold
        self._asked: tuple[int, Slots | None] = (-1, None)
        """The queue's changes and the slots that decoded when last asked."""

    def make_room(self) -> None:
        if not len(self._waiting) or not self._lanes.size or self._asked_already():
            return
        req = next(iter(self._waiting.ordered()))
        for slot in self._victims(req):
            if not self._lacks(req):
                break
            self._retraction.retract(slot, "A more urgent request waits")
            self._kv.settle()
        self._asked = (self._waiting.changes, self._lanes.slots)

    def _asked_already(self) -> bool:
        """Whether the answer is as before: the same run and wait, and none of these can have a place.

        Where a place is free, those who run may have taken the memory for it since.
        """
        changes, slots = self._asked
        return self._kv.free_slots == 0 and changes == self._waiting.changes and slots is self._lanes.slots

    def _lacks(self, req: Req) -> bool:
        return self._kv.free_slots == 0 or self._prefill.tokens_lacking(req) > 0

    def _victims(self, req: Req) -> list[int]:
        """Who gives way, in that order; none if they all would not be enough."""
        slots = [*self._lanes.slots.tolist(), *(req.slot for req in self._lanes.chunked)]
        urgency = {slot: self._table.req(slot).urgency for slot in slots}
        outranked = [slot for slot in reversed(slots) if req.urgency - urgency[slot] > self._threshold]
        if not outranked:
            return []
        # Pages of who left count only when they have been copied to where they go, if anywhere.
        self._kv.settle()
        outranked.sort(key=urgency.__getitem__)
        # What two victims share with nobody else comes free too; that is not reckoned with.
        held = sum(map(self._kv.tokens_alone, outranked))
        aside = float(self._prefill.reserved(np.asarray(outranked, dtype=np.int64)).sum())
        return outranked if self._prefill.tokens_lacking(req) <= held + aside else []
