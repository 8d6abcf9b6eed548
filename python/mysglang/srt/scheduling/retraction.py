"""Retraction: take a request's memory and put it back in the queue, with all that it has generated.

It is computed again later as a longer prompt. What it sampled in a step that is still in flight is dropped by its
life number and sampled again, with the same seed at the same place.
"""

from __future__ import annotations

import logging

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.scheduling.waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)


class Retraction:
    """Chooses victims and takes their memory; `count` of them since the start."""

    def __init__(
        self,
        table: RequestTable,
        lanes: Lanes,
        residency: Residency,
        waiting: WaitingQueue,
        stats: SchedulerStats,
    ) -> None:
        self._stats = stats
        self._table = table
        self._lanes = lanes
        self._residency = residency
        self._waiting = waiting
        self.count = 0

    def retract_one(self) -> Req | None:
        """Retract whoever loses least; None if only one request holds memory.

        That is the one that has generated fewest tokens, of equals the one with the longest prompt, of equals the one
        that joined last. A request whose prompt is half computed goes only when one decoding row is left.
        """
        decoding = self._lanes.slots
        if len(decoding) > 1:
            return self.retract(self._youngest(decoding))
        for req in self._lanes.chunked:
            return self.retract(req.slot)
        return None

    def retract_all(self) -> None:
        """Retract everybody; those that joined first will be first again."""
        for slot in reversed([*self._lanes.slots.tolist(), *(req.slot for req in self._lanes.chunked)]):
            self.retract(slot, "Paused")

    def retract(self, slot: int, why: str = "KV cache is full") -> Req:
        """Put the request in `slot` back in the queue, in front."""
        req = self._residency.leave(slot)
        self.put_back(req)
        logger.info("%s: request %s retracted after %d tokens", why, req.rid, len(req.output_ids))
        return req

    def put_back(self, req: Req) -> None:
        """A request that was made to leave its slot waits again, in front."""
        req.retractions += 1
        self.count += 1
        self._stats.retracted(req)
        self._waiting.add_retracted(req)

    def _youngest(self, slots: Slots) -> int:
        table = self._table
        prompt = table.prompt_len[slots]
        generated = table.known[slots] - prompt
        joined_last = -np.arange(len(slots))
        return int(slots[np.lexsort((joined_last, -prompt, generated))[0]])
