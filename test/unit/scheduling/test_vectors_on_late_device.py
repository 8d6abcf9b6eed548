"""Requests that end after their prompt: each gets its own vector, once, however its prompt came into the steps."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.messages.outputs import Abort, BatchTokenIDOutput, Length

SETUPS = [
    Setup(overlap=overlap, chunk=chunk, cache=cache, page_size=page_size)
    for (overlap, chunk), (cache, page_size) in itertools.product(
        [(True, None), (True, 16), (False, 16)], [("radix", 1), ("chunk", 4), ("chunk", 256)]
    )
    if chunk is None or chunk >= page_size
]


class VectorScheduler(LateScheduler):
    """Its worker also makes a vector of each prompt: its length, and a number that is NaN for a length of 13."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.vectors: dict[str, list[float]] = {}
        self.modes: set[bool] = set()
        launch = self.worker.forward_batch_generation

        def launch_and_pool(batch: ModelWorkerBatch) -> BatchResult:
            self.modes.add(batch.mode.is_decode)
            result = launch(batch)
            lens = batch.seq_lens[batch.yields].astype(np.float32)
            vectors = np.stack([lens, np.where(lens == 13, np.nan, 1)], axis=1).astype(np.float32)

            def finish() -> StepOutput:
                return replace(result.complete(), vectors=vectors if len(vectors) else None)

            return BatchResult(finish)

        self.worker.forward_batch_generation = launch_and_pool  # type: ignore[method-assign]

    def ask(self, rid: str, length: int, seed: int = 0) -> None:
        prompt = np.random.default_rng(seed).integers(3, 60, length).tolist()
        self.send(rid, prompt, max_new=0, stream=False)

    def _take(self, message: BatchTokenIDOutput) -> None:
        super()._take(message)
        for row, vector in message.vectors.items():
            assert message.rids[row] not in self.vectors
            self.vectors[message.rids[row]] = np.frombuffer(vector, dtype=np.float32).tolist()


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_each_gets_its_own(setup: Setup) -> None:
    scheduler = VectorScheduler(setup)
    lens = [5, 40, 1, 77, 18, 33, 64, 2] * 4
    for i, length in enumerate(lens):
        scheduler.ask(str(i), length, seed=i % 11)
        scheduler.turn(i % 3)
    scheduler.run()
    assert scheduler.vectors == {str(i): [float(length), 1.0] for i, length in enumerate(lens)}
    assert all(answer.finish == Length(0) and not answer.ids for answer in scheduler.answers.values())
    assert scheduler.modes == {False}, "nobody decodes"


def test_what_is_not_a_number_is_an_error() -> None:
    scheduler = VectorScheduler(Setup())
    scheduler.ask("bad", 13)
    scheduler.ask("good", 14)
    scheduler.run()
    finish: Any = scheduler.answers["bad"].finish
    assert isinstance(finish, Abort) and finish.status == 500
    assert scheduler.vectors == {"good": [14.0, 1.0]}


def test_an_aborted_request_has_none() -> None:
    scheduler = VectorScheduler(Setup(overlap=True))
    scheduler.ask("a", 20)
    scheduler.turn()
    scheduler.abort("a")
    scheduler.ask("b", 20)
    scheduler.run()
    assert isinstance(scheduler.answers["a"].finish, Abort)
    assert list(scheduler.vectors) == ["b"]
