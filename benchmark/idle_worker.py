"""IdleWorker: what a scheduler asks of a worker besides its steps, for benchmarks without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.forward.weights import FixedOccupation, ModelWeights, NoWeights, Occupation
from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.managers.scheduler_builder import NamedWorker


class IdleWorker(NamedWorker):
    """A base of workers whose steps compute nothing. mypy says so where it lacks what a `Worker` has."""

    tokens_per_step = 1
    late_lengths = False
    device_name = "none"
    attention_backend = "none"
    device_profile = "none"
    programs: ClassVar[Mapping[str, str]] = {}
    weights: ModelWeights = NoWeights()
    occupation: Occupation = FixedOccupation()
    host_pages: HostPages = NoHostPages()

    def __init__(self, capacity: WorkerCapacity) -> None:
        self.capacity = capacity

    def catch_up(self, *, idle: bool) -> None:
        pass
