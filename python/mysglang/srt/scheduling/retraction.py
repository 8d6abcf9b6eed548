"""Retraction: take a request's memory and put it back in the queue, with all that it has generated.

It is computed again later as a longer prompt. What it sampled in a step that is still in flight is dropped by its
life number and sampled again, with the same seed at the same place.
"""

from __future__ import annotations

import logging

import numpy as np

from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.scheduling.waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)


class Retraction:
    """Chooses victims and takes their memory; `count` of them since the start."""

    def __init__(self, table: RequestTable, residency: Residency, waiting: WaitingQueue, stats: SchedulerStats) -> None:
        self._stats = stats
        self._table = table
        self._residency = residency
        self._waiting = waiting
        self.count = 0

    def retract_one(self, lane: Lane, candidates: Slots) -> Req | None:
        """Retract whoever loses least; None if only one request holds memory in `lane`.

        That is the one that has generated fewest tokens, of equals the one with the longest prompt, of equals the one
        that joined last. The request whose prompt is half computed goes only when one decoding row is left.
        """
        if len(candidates) > 1:
            return self.retract(lane, self._youngest(candidates))
        if lane.chunked is not None:
            return self.retract(lane, lane.chunked.slot)
        return None

    def retract_all(self, lane: Lane) -> None:
        """Retract everybody; those that joined first will be first again."""
        slots = lane.slots.tolist() + ([] if lane.chunked is None else [lane.chunked.slot])
        for slot in reversed(slots):
            self.retract(lane, slot, "Paused")

    def retract(self, lane: Lane, slot: int, why: str = "KV cache is full") -> Req:
        """Put the request in `slot` back in the queue, in front."""
        req = self._residency.leave(slot, lane)
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
