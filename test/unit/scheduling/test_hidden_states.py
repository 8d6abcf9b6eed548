"""Hidden states: each position once and in order, however a request came through chunks, retraction and the cache."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.covering import pairwise
from fixtures.late_scheduler import LOOPS, VOCAB, LateScheduler, Setup
from fixtures.shaky_memory import Shakes
from fixtures.step_outputs import hidden_states
from mysglang.srt.forward.worker_batch import Floats
from mysglang.srt.messages.generate import HiddenStatesWish
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.books import HiddenBook

SETUPS = [Setup(**case) for case in pairwise({**LOOPS, "shakes": (Shakes(), Shakes(retract_every=5))})] + [
    Setup(order="mixed", chunk=32)
]


def ask(scheduler: LateScheduler, rid: str, prompt: list[int], max_new: int, wish: HiddenStatesWish | None) -> None:
    params = SamplingParams(max_new_tokens=max_new, ignore_eos=True, sampling_seed=1)
    scheduler.ask(rid, prompt, params, stream=len(prompt) % 2 == 0, hidden_states=wish)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_each_position_is_told_once(setup: Setup) -> None:
    """The prompt's from the first on or only the last, and one for each token after it, the last one's excepted."""
    scheduler = LateScheduler(setup)
    scheduler.worker.more_outputs = hidden_states
    shared = np.random.default_rng(0).integers(1, VOCAB, 60).tolist()
    expected = {}
    for i in range(16):
        prompt, max_new = shared[: 7 + 2 * i], (0, 1, 2, 20)[i % 4]
        wish: HiddenStatesWish | None = (None, "all", "last")[i % 3]  # type: ignore[assignment]
        ask(scheduler, f"r{i}", prompt, max_new, wish)
        first = {"all": 0, "last": len(prompt) - 1, None: len(prompt) + max_new}[wish]
        end = len(prompt) + max(max_new - 1, 0)
        expected[f"r{i}"] = [float(position) for position in range(first, end)]
        scheduler.turn(i % 3)
    scheduler.run()
    assert {rid: answer.hidden for rid, answer in scheduler.answers.items()} == expected
    if setup.shakes.retract_every:
        assert scheduler.retractions > 0


def test_what_is_wanted_of_the_prompt_does_not_come_from_the_cache() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.worker.more_outputs = hidden_states
    for rid, wish in (("before", None), ("all", "all"), ("last", "last")):
        ask(scheduler, rid, [5] * 30, 3, wish)  # type: ignore[arg-type]
        scheduler.run()
    cached = {rid: answer.cached_tokens for rid, answer in scheduler.answers.items()}
    assert cached == {"before": 0, "all": 0, "last": 29}


def states(*values: float) -> Floats:
    return np.asarray(values, dtype=np.float32)[:, None]


def test_what_is_not_finite_is_computed_again() -> None:
    book = HiddenBook(0)
    book.add(0, states(0, 1))
    book.add(2, states(2, np.nan))
    book.add(4, states(4))
    assert book.have == 2
    book.add(2, states(2, 3))
    assert np.frombuffer(book.take(), dtype=np.float32).tolist() == [0, 1, 2, 3]
    assert book.take() == b""
