"""PrefillPlanner: fill a step's token budget with prompts, whole or in chunks.

A request is admitted when its pages, and a share of what it and the running ones may still generate, fit the memory.
`NewTokenRatio` is that share. The pages of an admitted request go to the prefix cache at once, before they are
computed. The device runs steps in order and stores keys and values before it attends, so the next request, even of the
same step, may already share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from mysglang.srt.forward.worker_batch import Floats, ForwardMode, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.spaces import Room
from mysglang.srt.mem_cache.tree_node import PrefixMatch
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.policy import PromptClock, WaitingQueue
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency

MAX_NEW_ESTIMATE = 4096
"""Memory is set aside for at most so many tokens to come of one request; one that generates more may cause a
retraction.
"""
LEAST_SHARE = 4
"""Prompts get at least 1/4 of a step's budget, however many rows decode beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLimits:
    """Token limits of one prefill step."""

    max_prefill_tokens: int
    """New tokens of a step; its first request may exceed it alone when chunking is off."""
    chunked_prefill_size: int | None
    """New tokens of a step with chunking; None: prompts are computed whole."""

    @property
    def chunking(self) -> bool:
        return self.chunked_prefill_size is not None

    def row_chunk(self, page_size: int) -> int | None:
        """Returns the most new tokens of one row in a step; None: all of its prompt."""
        return max(self.budget(0), page_size) if self.chunking else None

    def budget(self, decoding: int) -> int:
        """Returns how many prompt tokens one step may have beside `decoding` rows: what these leave of the budget, but
        at least a share.
        """
        chunk = self.max_prefill_tokens if self.chunked_prefill_size is None else self.chunked_prefill_size
        budget = min(self.max_prefill_tokens, chunk)
        return max(budget - decoding, budget // LEAST_SHARE)


AdmissionRule: TypeAlias = Callable[[Req, Sequence[Req]], bool]
"""(request, others) -> whether the request may run beside the others, which run or were admitted before it.

Asked before memory is taken. It must depend on its arguments alone, so that all ranks decide alike.
"""


@dataclass(slots=True)
class PrefillStep:
    """A prefill step in the making."""

    budget: int
    """New tokens that it may still take."""
    room: Room
    """Room in the page spaces beside the tokens that running and admitted requests may still generate."""
    rows: list[tuple[Req, int, int]] = field(default_factory=list)
    """(request, first new position, new tokens)."""
    admitted: list[Req] = field(default_factory=list)
    cached: int = 0


class PrefillPlanner:
    """Plans prefill steps; owns no request."""

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        residency: Residency,
        waiting: WaitingQueue,
        ratio: NewTokenRatio,
        *,
        limits: PrefillLimits,
        clock: PromptClock,
        rules: Sequence[AdmissionRule] = (),
    ) -> None:
        self._table = table
        self._kv = kv
        self._lanes = lanes
        self._residency = residency
        self._waiting = waiting
        self._ratio = ratio
        self._limits = limits
        self._clock = clock
        self._rules = rules

    def plan(self, lane: Lane, *, decoding: int = 0, most: int | None = None) -> ScheduleBatch | None:
        """Returns the next prefill step for `lane`, beside `decoding` decoding rows; None if no request can be taken.
        `most`: its prompt tokens, if they are fewer than the limits allow.
        """
        if lane.short or not self.has_work(lane):
            return None
        budget = self._limits.budget(decoding)
        step = self._begun(max(budget if most is None else min(budget, most), self._kv.page_size))
        if lane.chunked is not None:
            self._continue(lane.chunked, step, lane)
        if lane.chunked is None:
            self._admit_waiting(step, lane)
        return self._batch(step, lane) if step.rows else None

    def has_work(self, lane: Lane) -> bool:
        """True if a prompt waits, or is half computed."""
        return lane.chunked is not None or len(self._waiting) > 0

    def tokens_waiting(self, lane: Lane, most: int) -> int:
        """Counts the prompt tokens that are to be computed, cached ones included. Stops counting beyond `most`."""
        chunked = lane.chunked
        tokens = 0 if chunked is None else len(chunked.ids) - int(self._table.low[chunked.slot])
        for req in self._waiting:
            if tokens > most:
                break
            tokens += len(req.ids)
        return tokens

    def reserved(self, slots: Slots) -> Floats:
        """Returns [R] how many tokens are reserved for the further output of each of these running requests."""
        table = self._table
        to_come = np.clip(table.final_len[slots] - table.will_know(slots), 0, MAX_NEW_ESTIMATE)
        shares: Floats = to_come * np.where(table.obeys_eos[slots], self._ratio.value, 1.0).astype(np.float32)
        return shares

    def tokens_lacking(self, req: Req) -> float:
        """Returns the number of tokens that must become free before `req` can be admitted, if there is a slot; 0 or
        less: none.
        """
        if not self._lanes.size:
            return 0
        match = req.cached_prefix(self._kv)
        step = self._begun(self._limits.budget(0))
        return self._lacking(req, match, max(self._fit(step, match.reach, len(req.ids) - match.reach), 1), step)

    def _begun(self, budget: int) -> PrefillStep:
        """Returns an empty step of at most `budget` new tokens, beside all running requests."""
        slots = self._lanes.slots
        return PrefillStep(budget, self._kv.room(slots, self.reserved(slots)))

    def _continue(self, req: Req, step: PrefillStep, lane: Lane) -> None:
        """Adds the next chunk of a request that has its slot already."""
        start = int(self._table.low[req.slot])
        take = self._fit(step, start, len(req.ids) - start)
        if take > 0 and self._kv.extend(req.slot, start + take):
            lane.chunked = None
            self._take(req, start, take, step, lane)

    def _admit_waiting(self, step: PrefillStep, lane: Lane) -> None:
        """Admits waiting requests in the policy's order until one does not fit.

        At most one prompt is half computed at any time, in all lanes together: of two, each might hold the memory that
        the other one needs.
        """
        if self._kv.free_slots == 0 or self._lanes.chunked:
            return
        others = [self._table.req(slot) for slot in self._lanes.slots.tolist()] if self._rules else []
        others.extend(req for req, _, _ in step.rows)
        # A request that has just got its last chunk is in this step, and joins the lane with it: it takes a place, too.
        places = self._lanes.share(len(step.rows) + len(self._waiting)) - lane.size - len(step.rows)
        for req in self._waiting.ordered():
            if len(step.admitted) >= places:
                break
            if step.budget <= 0 or lane.chunked is not None or self._kv.free_slots == 0:
                break
            if not all(allows(req, others) for allows in self._rules):
                break
            if not self._admit(req, step, lane):
                break
            others.append(req)
        self._waiting.remove(step.admitted)

    def _admit(self, req: Req, step: PrefillStep, lane: Lane) -> bool:
        """Gives `req` a slot, its cached prefix and the pages of its first tokens. Returns False if it does not fit
        now.
        """
        kv = self._kv
        match = req.cached_prefix(kv)
        cached = match.reach
        extend = len(req.ids) - cached
        # A request alone always fits, since those larger than the memory are refused on arrival. Memory for what it may
        # generate is set aside only if other requests run, which it could otherwise force to be retracted.
        alone = self._lanes.size == 0 and not step.rows
        take = self._fit(step, cached, extend)
        if take <= 0 or not (alone or self._lacking(req, match, take, step) <= 0):
            return False
        slot = kv.open(match)
        extended = kv.extend(slot, cached + take)
        assert extended, "a request was admitted that does not fit"
        kv.load_back(slot, match)
        self._residency.enter(req, slot, lane, cached=cached)
        step.admitted.append(req)
        step.cached += cached
        step.room.admit(cached + take, len(req.ids), self._to_come(req))
        self._take(req, cached, take, step, lane)
        return True

    def _lacking(self, req: Req, match: PrefixMatch, take: int, step: PrefillStep) -> float:
        """Returns the number of tokens that must become free for `req`, which begins with `match` and gets `take` more
        tokens in the step.
        """
        return step.room.lacking(match, match.reach + take, len(req.ids), self._to_come(req))

    def _to_come(self, req: Req) -> int:
        return min(req.final_len - len(req.ids), MAX_NEW_ESTIMATE) + self._kv.page_size

    def _fit(self, step: PrefillStep, start: int, extend: int) -> int:
        """Returns how many of `extend` tokens after `start` the step takes: all, a whole number of pages, or none."""
        if extend <= step.budget:
            return extend
        if not self._limits.chunking:
            return extend if not step.rows else 0
        page = self._kv.page_size
        return max((start + step.budget) // page * page - start, 0)

    def _take(self, req: Req, start: int, take: int, step: PrefillStep, lane: Lane) -> None:
        """Adds `take` tokens of `req` to the step. The memory for them is already held."""
        end = start + take
        step.rows.append((req, start, take))
        step.budget -= take
        self._clock.tokens += take
        self._table.low[req.slot] = self._table.high[req.slot] = end
        self._kv.commit(req.slot, req.ids[:end], more=end < len(req.ids))
        if end < len(req.ids):
            lane.chunked = req

    def _batch(self, step: PrefillStep, lane: Lane) -> ScheduleBatch:
        """Returns the step, with its finished prompts joined to the lane."""
        table = self._table
        slots = np.asarray([req.slot for req, _, _ in step.rows], dtype=np.int64)
        starts = np.asarray([start for _, start, _ in step.rows], dtype=np.int32)
        lens = np.asarray([take for _, _, take in step.rows], dtype=np.int32)
        ends = starts + lens
        yields = ends >= table.known[slots]
        lane.join(slots[yields])
        return ScheduleBatch(
            mode=ForwardMode.EXTEND,
            slots=slots,
            lives=table.life[slots],
            starts=starts,
            lens=lens,
            high_lens=ends,
            yields=yields,
            new_tokens=int(lens.sum()),
            cached_tokens=step.cached,
            new_seqs=len(step.admitted),
        )


INIT_RATIO = 0.7
MIN_SHARE = 0.14
DECAY_STEPS = 600
RETRACT_HEADROOM = 20
"""Decode steps that a retraction should buy for those that remain."""


class NewTokenRatio:
    """The share of the tokens that running requests may still generate for which memory is set aside: `value` in (0,
    1].

    With a high value no request is ever retracted, but memory idles; with a low one more requests run at once. It
    starts high, falls while decoding goes well and jumps up after a retraction. (SGLang's `new_token_ratio`.)
    """

    def __init__(self, conservativeness: float) -> None:
        self.change(conservativeness)
        self.value = self._init

    def change(self, conservativeness: float) -> None:
        """Sets other bounds; `value` moves between them from now on."""
        self.conservativeness = conservativeness
        self._init = min(INIT_RATIO * conservativeness, 1.0)
        self._min = min(MIN_SHARE * self._init, 1.0)
        self._decay = (self._init - self._min) / DECAY_STEPS

    def after_decode(self) -> None:
        """Lowers the ratio after a decode step found its memory."""
        self.value = max(self.value - self._decay, self._min)

    def after_retraction(self, generated: int, max_new: int, running: int) -> None:
        """Sets the ratio after requests were retracted. Those left have generated `generated` of the `max_new` tokens
        that they may.
        """
        self.value = min((generated + RETRACT_HEADROOM * running) / (max_new + 1), 1.0)

    def reset(self) -> None:
        """Returns to the initial ratio, because no request runs any more."""
        self.value = self._init
