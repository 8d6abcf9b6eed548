"""Step planners: whether prompts or running requests come next, or both at once; then the coordinator's word."""

from __future__ import annotations

from typing import Literal, Protocol

from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.coordinator import Coordinator
from mysglang.srt.scheduling.decode_planner import DecodePlanner
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.preemption import Preemption
from mysglang.srt.scheduling.prefill_planner import PrefillPlanner
from mysglang.srt.scheduling.request import Req


class StepOrder(Protocol):
    """Chooses the kind of the next step."""

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        """The step to run now, or None if there is nothing to do."""
        ...


class PrefillFirst:
    """Prompts as long as any can be taken, else decode: the fewest steps, and the running wait for the prompts."""

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner) -> None:
        self._prefill = prefill
        self._decode = decode

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        return self._prefill.plan(lane) or self._decode.plan(lane)


class BoundedWaits:
    """Prompts first, but a step of the running whenever so many prompt tokens were computed while they waited.

    So a running request waits for no more than `limit` prompt tokens and the step that passes it, however many prompts
    come; and prompts wait for one step of the running at most. While nobody runs nothing is different.
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
    """Every step has the next token of all that run, and prompts in what is left of its budget.

    So a running request waits for no more prompt tokens than fit one step, and prompts for no more than one step: they
    keep a share of the budget however many run. (SGLang's `--enable-mixed-chunk`.)
    """

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner) -> None:
        self._prefill = prefill
        self._decode = decode

    def next_step(self, lane: Lane) -> ScheduleBatch | None:
        # The running come first, also for memory. Prompts that are complete join the lane, and decode from the next.
        decode = self._decode.plan(lane)
        prompts = self._prefill.plan(lane, decoding=0 if decode is None else decode.new_tokens)
        if prompts is None or decode is None:
            return prompts or decode
        return prompts.beside(decode)


OrderName = Literal["prefill_first", "bounded", "mixed"]


def step_order(
    name: OrderName, prefill: PrefillPlanner, decode: DecodePlanner, *, decode_wait_tokens: int
) -> StepOrder:
    """The order of that name. `decode_wait_tokens`: what `bounded` bounds."""
    match name:
        case "prefill_first":
            return PrefillFirst(prefill, decode)
        case "bounded":
            return BoundedWaits(prefill, decode, decode_wait_tokens)
        case "mixed":
            return MixedChunks(prefill, decode)


class StepPlanner:
    """Plans the next step and lets the other ranks agree to it."""

    def __init__(
        self, order: StepOrder, decode: DecodePlanner, preemption: Preemption, coordinator: Coordinator
    ) -> None:
        self._order = order
        self._decode = decode
        self._preemption = preemption
        self._coordinator = coordinator

    def next_batch(self, lane: Lane) -> ScheduleBatch | None:
        """The step to run now, or None if there is nothing to do."""
        self._preemption.make_room()
        return self._coordinator.agree(self._order.next_step(lane))

    def take_failed(self) -> list[Req]:
        """Requests that planning had to end for want of memory, each once."""
        failed = self._decode.failed
        if failed:
            self._decode.failed = []
        return failed
