"""StepPlanner: what the next step of a lane computes.

1. Preemption    a much more urgent request that waits may displace running ones
2. StepOrder     prompts or running requests come next, or both at once
3. Coordinator   the other ranks agree to the step
"""

from __future__ import annotations

import zlib
from typing import Literal, Protocol

import numpy as np

from mysglang.srt.forward.worker import StepRates
from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.decode_planner import DecodePlanner
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.prefill_planner import PrefillPlanner
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Retraction
from mysglang.srt.scheduling.step_lengths import PromptShare, StepLengths


class StepPlanner:
    """Plans the next step of a lane."""

    def __init__(
        self, order: StepOrder, decode: DecodePlanner, preemption: Preemption, coordinator: Coordinator
    ) -> None:
        self._order = order
        self._decode = decode
        self._preemption = preemption
        self._coordinator = coordinator

    def next_batch(self, lane: Lane) -> ScheduleBatch | None:
        """Returns the step to run now, or None if there is nothing to do."""
        self._preemption.make_room()
        return self._coordinator.agree(self._order.next_step(lane))

    def take_failed(self) -> list[Req]:
        """Returns the requests that planning had to end because memory was short, each once."""
        failed = self._decode.failed
        if failed:
            self._decode.failed = []
        return failed


class StepOrder(Protocol):
    """Chooses whether the next step computes prompts, running requests, or both."""

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        """Returns the step to run now, or None if there is nothing to do."""
        ...


class PrefillFirst:
    """Plans prompts while any can be admitted, otherwise a decode step. That makes the fewest steps; running requests
    wait for prompts.
    """

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner) -> None:
        self._prefill = prefill
        self._decode = decode

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        return self._prefill.plan(lane) or self._decode.plan(lane)


class BoundedWaits:
    """Prompts first, but a decode step whenever `limit` prompt tokens were computed while running requests waited.

    So a running request waits for no more than `limit` prompt tokens and the step that passes it, however many prompts
    come; and prompts wait for at most one decode step. While no request runs, it is the same as `PrefillFirst`.
    """

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner, limit: int) -> None:
        self._prefill = prefill
        self._decode = decode
        self._limit = limit

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        if not len(lane.slots):
            lane.waited = 0
            return self._prefill.plan(lane)
        if lane.waited < self._limit:
            prompts = self._prefill.plan(lane)
            if prompts is not None:
                lane.waited += prompts.new_tokens
                return prompts
        lane.waited = 0
        return self._decode.plan(lane) or self._prefill.plan(lane)


class MixedChunks:
    """Every step has the next token of all running requests, and prompts in the rest of its budget.

    So a running request waits for no more prompt tokens than fit one step. Prompts wait for no more than one step: they
    keep a share of the budget, however many requests run. (SGLang's `--enable-mixed-chunk`.)
    """

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner) -> None:
        self._prefill = prefill
        self._decode = decode

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        # Running requests come first, also for memory. Prompts that this step completes decode from the next step on.
        decode = self._decode.plan(lane)
        prompts = self._prefill.plan(lane, decoding=0 if decode is None else decode.new_tokens)
        if prompts is None or decode is None:
            return prompts or decode
        return prompts.beside(decode)


class ShortSteps:
    """While answers are streamed, no step is much longer than a decode step: `StepLengths` says how many prompt tokens
    the next one may have, and whether the decoding rows share it. While none is, it does as `others` does.

    So a decoding row waits for one short step at a time, and a prompt for at most one decode step. The gaps in an
    answer that is sent as a whole are never seen. For such answers long steps are better, since they are fewer.
    """

    def __init__(
        self,
        prefill: PrefillPlanner,
        decode: DecodePlanner,
        table: RequestTable,
        lengths: StepLengths,
        others: StepOrder,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._table = table
        self._lengths = lengths
        self._others = others

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        if not self._watched(lane):
            return self._others.next_step(lane)
        if not self._prefill.has_work(lane):
            return self._decode.plan(lane)
        share = self._share(lane)
        if share.together:
            lane.waited = 0
            decode = self._decode.plan(lane)
            decoding = 0 if decode is None else decode.new_tokens
            prompts = self._prefill.plan(lane, decoding=decoding, most=share.tokens)
            if prompts is None or decode is None:
                return prompts or decode
            return prompts.beside(decode)
        if not lane.waited and (alone := self._prefill.plan(lane, most=share.tokens)) is not None:
            lane.waited = alone.new_tokens
            return alone
        lane.waited = 0
        return self._decode.plan(lane) or self._prefill.plan(lane, most=share.tokens)

    def _watched(self, lane: Lane) -> bool:
        """True if a decoding row streams its answer."""
        streamed = self._table.streamed
        return streamed.count > 0 and bool(streamed.of(lane.slots).any())

    def _share(self, lane: Lane) -> PromptShare:
        rows, keys = len(lane.slots), int(self._table.high[lane.slots].sum())
        few = self._lengths.few(rows, keys)
        return self._lengths.share(rows, keys, many=self._prefill.tokens_waiting(lane, few) > few)


OrderName = Literal["prefill_first", "bounded", "mixed", "short"]


def step_order(
    name: OrderName,
    prefill: PrefillPlanner,
    decode: DecodePlanner,
    table: RequestTable,
    *,
    decode_wait_tokens: int,
    rates: StepRates | None = None,
) -> StepOrder:
    """Returns the order of that name. `decode_wait_tokens`: the limit of `bounded`, in prompt tokens. `rates`: what
    steps cost, which `short` must know.
    """
    match name:
        case "short":
            assert rates is not None, "the cost of steps is known"
            others = BoundedWaits(prefill, decode, decode_wait_tokens)
            return ShortSteps(prefill, decode, table, StepLengths(rates), others)
        case "prefill_first":
            return PrefillFirst(prefill, decode)
        case "bounded":
            return BoundedWaits(prefill, decode, decode_wait_tokens)
        case "mixed":
            return MixedChunks(prefill, decode)


class Preemption(Protocol):
    """Decides whether running requests make room for a more urgent one that waits, before each step is planned."""

    def make_room(self) -> None:
        """Retracts the requests that must give way to the next request. They are not ended."""
        ...


class NoPreemption:
    """Never preempts a running request."""

    def make_room(self) -> None:
        pass


class PriorityPreemption:
    """Lets the next request displace running ones that are less urgent by more than `threshold`, if it gets a slot by
    that.

    The least urgent go first, of equals those that joined last, until there is a slot and memory. If even all of them
    would not be enough, none goes. (SGLang's rule: `--priority-scheduling-preemption-threshold`.)
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
        """True if the answer is the same as before: the same requests run and wait, and no slot is free.

        With a free slot the answer may differ, since running requests may have taken memory since.
        """
        changes, slots = self._asked
        return self._kv.free_slots == 0 and changes == self._waiting.changes and slots is self._lanes.slots

    def _lacks(self, req: Req) -> bool:
        return self._kv.free_slots == 0 or self._prefill.tokens_lacking(req) > 0

    def _victims(self, req: Req) -> list[int]:
        """Returns the slots that give way, in that order; none if all of them together would not be enough."""
        slots = [*self._lanes.slots.tolist(), *(req.slot for req in self._lanes.chunked)]
        urgency = {slot: self._table.req(slot).urgency for slot in slots}
        outranked = [slot for slot in reversed(slots) if req.urgency - urgency[slot] > self._threshold]
        if not outranked:
            return []
        # Pages of requests that left count as free only when pending copies of them are done.
        self._kv.settle()
        outranked.sort(key=urgency.__getitem__)
        # Pages that only two victims share come free too; leaving them out makes this estimate a safe one.
        held = sum(map(self._kv.tokens_alone, outranked))
        aside = float(self._prefill.reserved(np.asarray(outranked, dtype=np.int64)).sum())
        return outranked if self._prefill.tokens_lacking(req) <= held + aside else []


class Coordinator(Protocol):
    """Lets ranks agree on each planned step. Called once in each iteration, also if no step was planned."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        """Returns the step that this rank runs."""
        ...


class SoloCoordinator:
    """A null object for a server with one rank."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        return batch


class PlanDigest:
    """Checks that all ranks plan the same steps (the Coordinator of ranks that share each layer). Every rank plans
    every step by itself.

    Keeps a number that all plans so far have made. The first rank's number comes with the next turn's messages, and a
    rank that has another one ends (`managers/rank_links.py`): without that, ranks whose steps differ but have the same
    size would go on, and answer nonsense.
    """

    def __init__(self) -> None:
        self.value = 0
        """CRC-32 of all rows planned so far."""

    def agree(self, batch: ScheduleBatch | None) -> ScheduleBatch | None:
        if batch is not None:
            for column in (batch.slots, batch.lives, batch.starts, batch.lens):
                self.value = zlib.crc32(column.tobytes(), self.value)
        return batch
