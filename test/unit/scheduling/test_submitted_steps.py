"""A submitted step belongs to the worker: its arrays are not written, however late the device reads them."""

from __future__ import annotations

import copy
import random

import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings
from fixtures.step_equality import same
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch

SETUPS = {
    "plain": Setup(page_size=4, chunk=32),
    "short of memory": Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, conservativeness=0.1),
    "windows": Setup(windows=((24, 160),), chunk=32, order="mixed"),
    "host": Setup(num_tokens=256, max_context=160, num_slots=6, chunk=24, host_tokens=320),
    "drafts": Setup(page_size=4, chunk=32, drafts=4),
    "two lanes": Setup(lanes=2, chunk=48, max_prefill_tokens=64),
}


@pytest.mark.parametrize("name", SETUPS)
def test_nobody_changes_it(name: str) -> None:
    scheduler, rng = LateScheduler(SETUPS[name]), random.Random(3)
    submitted: list[ModelWorkerBatch] = []
    launch = scheduler.worker.forward_batch_generation

    def watched(batch: ModelWorkerBatch) -> BatchResult:
        submitted.append(copy.deepcopy(batch))
        return launch(batch)

    scheduler.worker.forward_batch_generation = watched  # type: ignore[method-assign]
    Storm(requests=30, max_new=40, turns=4, flush=0.05).rage(scheduler, rng, drawn_beginnings(rng, 4))
    assert len(submitted) > 80
    differing = [number for number, step in enumerate(scheduler.worker.steps) if not same(step, submitted[number])]
    assert not differing
