"""StepPlanner: prefill first, else decode; then the coordinator's word."""

from __future__ import annotations

from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.coordinator import Coordinator
from mysglang.srt.scheduling.decode_planner import DecodePlanner
from mysglang.srt.scheduling.lane import Lane
from mysglang.srt.scheduling.prefill_planner import PrefillPlanner
from mysglang.srt.scheduling.request import Req


class StepPlanner:
    """Chooses the kind of the next step."""

    def __init__(self, prefill: PrefillPlanner, decode: DecodePlanner, coordinator: Coordinator) -> None:
        self._prefill = prefill
        self._decode = decode
        self._coordinator = coordinator

    def next_batch(self, lane: Lane) -> ScheduleBatch | None:
        """The step to run now, or None if there is nothing to do."""
        return self._coordinator.agree(self._prefill.plan(lane) or self._decode.plan(lane))

    def take_failed(self) -> list[Req]:
        """Requests that planning had to end for want of memory, each once."""
        failed = self._decode.failed
        if failed:
            self._decode.failed = []
        return failed
