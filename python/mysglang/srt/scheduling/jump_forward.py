"""Jump-forward: what a grammar leaves no choice about is appended to the answer, and computed together in one step.

    decode:  … t          f1      f2      f3      f4      x        a step for each
    jump:    … t  (dropped)  f1 f2 f3 f4 → x                       what was in flight, and one step for all

The request leaves its slot as a retracted one does, with the forced tokens behind its own, and is admitted again at
once: its pages are found in the prefix cache, and the rest is a short prompt. What a step in flight has for it is
dropped by its life number. Since others wait for such a step, it pays only where few run.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency

MOST_RUNNING = 4
"""With more running requests, the step that a jump costs all of them is more than the steps that it saves one of
them.
"""
LEAST_FORCED = 3
"""Tokens from which on there is something to save: two steps are needed anyhow."""


class Jumps(Protocol):
    """Jump-forward: appends the tokens that a grammar forces without asking the model."""

    def jump(self, lane: Lane) -> None:
        """Continues answers whose grammar forces the next text. Called when the tokens of a step of `lane` are applied
        and reported.
        """
        ...


class NoJumps:
    """A null object: every token is sampled from the model."""

    def jump(self, lane: Lane) -> None:
        pass


class JumpForward:
    """Appends the tokens that grammars force (implements Jumps). `count`: jumps since the start."""

    def __init__(
        self, table: RequestTable, kv: KvManager, lanes: Lanes, residency: Residency, waiting: WaitingQueue
    ) -> None:
        self._table = table
        self._kv = kv
        self._lanes = lanes
        self._residency = residency
        self._waiting = waiting
        self.count = 0

    def jump(self, lane: Lane) -> None:
        constrained = self._table.constrained
        # A waiting request would be admitted in between, and while a prompt is half computed no request is admitted.
        lanes = self._lanes
        if not constrained.count or lanes.size > MOST_RUNNING or lanes.chunked or len(self._waiting):
            return
        jumping = []
        for slot in lane.slots[constrained.rows(lane.slots)].tolist():
            forced = self._forced(slot)
            if len(forced) >= LEAST_FORCED and self._fits():
                jumping.append(self._leave(slot, forced))
        for req in reversed(jumping):
            self._waiting.add_retracted(req)
        self.count += len(jumping)

    def _forced(self, slot: int) -> list[int]:
        """Returns the tokens to append; none if each token must be checked, or if its logits are wanted."""
        req = self._table.req(slot)
        watched = req.stop_watch.active or req.rules is not None or req.logit_processor is not None
        if req.grammar is None or watched or req.logprobs is not None or req.hidden is not None:
            return []
        # One token at least is left to the model, which ends the request.
        room = int(self._table.final_len[slot] - self._table.known[slot]) - 1
        return list(req.grammar.forced()[: max(room, 0)])

    def _fits(self) -> bool:
        """True if all running requests could run to their ends in memory, so that a retracted one is admitted again at
        once.
        """
        longest = int(self._table.final_len[self._lanes.slots].sum())
        return longest + (MOST_RUNNING + 1) * self._kv.page_size <= self._kv.available_tokens()

    def _leave(self, slot: int, forced: list[int]) -> Req:
        req = self._residency.leave(slot)
        assert req.grammar is not None, "it forces tokens"
        for token in forced:
            accepted = req.grammar.accept(token)
            assert accepted, "a grammar forces what it does not allow"
        req.ids = np.concatenate([req.ids, np.asarray(forced, dtype=np.int32)])
        return req
