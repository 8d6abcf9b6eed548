"""Requests that end after their prompt: each gets its own vector, once, however its prompt came into the steps."""

import itertools
from typing import Any

import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from fixtures.step_outputs import vectors
from mysglang.srt.messages.outputs import Abort, Length

SETUPS = [
    Setup(overlap=overlap, chunk=chunk, cache=cache, page_size=page_size)
    for (overlap, chunk), (cache, page_size) in itertools.product(
        [(True, None), (True, 16), (False, 16)], [("radix", 1), ("chunk", 4), ("chunk", 256)]
    )
    if chunk is None or chunk >= page_size
]


def scheduler_of_vectors(setup: Setup) -> LateScheduler:
    scheduler = LateScheduler(setup)
    scheduler.worker.more_outputs = vectors
    return scheduler


def ask(scheduler: LateScheduler, rid: str, length: int, seed: int = 0) -> None:
    prompt = np.random.default_rng(seed).integers(3, 60, length).tolist()
    scheduler.send(rid, prompt, max_new=0, stream=False)


def vectors_told(scheduler: LateScheduler) -> dict[str, list[float]]:
    return {rid: answer.vector for rid, answer in scheduler.answers.items() if answer.vector}


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_each_gets_its_own(setup: Setup) -> None:
    scheduler = scheduler_of_vectors(setup)
    lens = [5, 40, 1, 77, 18, 33, 64, 2] * 4
    for i, length in enumerate(lens):
        ask(scheduler, str(i), length, seed=i % 11)
        scheduler.turn(i % 3)
    scheduler.run()
    assert vectors_told(scheduler) == {str(i): [float(length), 1.0] for i, length in enumerate(lens)}
    assert all(answer.finish == Length(0) and not answer.ids for answer in scheduler.answers.values())


def test_what_is_not_a_number_is_an_error() -> None:
    scheduler = scheduler_of_vectors(Setup())
    ask(scheduler, "bad", 13)
    ask(scheduler, "good", 14)
    scheduler.run()
    finish: Any = scheduler.answers["bad"].finish
    assert isinstance(finish, Abort) and finish.status == 500
    assert vectors_told(scheduler) == {"good": [14.0, 1.0]}


def test_an_aborted_request_has_none() -> None:
    scheduler = scheduler_of_vectors(Setup(overlap=True))
    ask(scheduler, "a", 20)
    scheduler.turn()
    scheduler.abort("a")
    ask(scheduler, "b", 20)
    scheduler.run()
    assert isinstance(scheduler.answers["a"].finish, Abort)
    assert list(vectors_told(scheduler)) == ["b"]
