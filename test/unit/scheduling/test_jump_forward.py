"""Jumps on the late device: no answer changes by them, and answers need fewer steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fixtures.covering import pairwise
from fixtures.fake_grammar import FORCING, solo_with_grammar
from fixtures.fake_worker import solo
from fixtures.late_scheduler import LOOPS, VOCAB, LateScheduler, Setup
from mysglang.srt.messages.requests import LogprobRequest
from mysglang.srt.scheduling.jump_forward import MOST_RUNNING, JumpForward

SETUPS = [
    Setup(jump_forward=True, **case) for case in pairwise({**LOOPS, "order": ("prefill_first", "bounded", "mixed")})
]


def jumps(scheduler: LateScheduler) -> int:
    found = scheduler.assembled.scheduler._parts.jumps
    assert isinstance(found, JumpForward)
    return found.count


def answers(scheduler: LateScheduler) -> dict[str, list[int]]:
    return {rid: answer.ids for rid, answer in scheduler.answers.items()}


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_answers_equal_solo_ones(setup: Setup) -> None:
    """A few at a time, some of them free, ended anywhere: by their grammar, or by length in a forced run."""
    rng = random.Random(3)
    scheduler = LateScheduler(setup)
    expected = {}
    for number in range(24):
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_new = rng.randrange(1, 40)
        rid = f"r{number}"
        if number % 4:
            scheduler.send(rid, prompt, max_new, regex=str(FORCING + number), stream=number % 2 == 0)
            expected[rid] = solo_with_grammar(prompt, max_new, VOCAB, FORCING + number)
        else:
            scheduler.send(rid, prompt, max_new)
            expected[rid] = solo(prompt, max_new, VOCAB)
        scheduler.turn(rng.randrange(20))
    scheduler.run()
    assert answers(scheduler) == expected
    assert jumps(scheduler) > 5
    assert not any(answer.retractions for answer in scheduler.answers.values())


def steps_of(setup: Setup) -> int:
    scheduler = LateScheduler(setup)
    scheduler.send("r", [1, 2, 3], 24, regex=str(FORCING + 16))
    scheduler.run()
    assert answers(scheduler) == {"r": solo_with_grammar([1, 2, 3], 24, VOCAB, FORCING + 16)}
    return len(scheduler.worker.steps)


@pytest.mark.parametrize(("overlap", "saved"), [(False, 6 + 5), (True, 6 + 5 - 2)])
def test_it_saves_steps(overlap: bool, saved: int) -> None:
    """Steps of two runs of six tokens are saved, except for the answer's last token; with overlap, a step in flight is
    dropped.
    """
    assert steps_of(Setup(overlap=overlap)) - steps_of(Setup(overlap=overlap, jump_forward=True)) == saved


def test_a_stream_has_every_token_once() -> None:
    scheduler = LateScheduler(Setup(jump_forward=True))
    scheduler.send("r", [1, 2, 3], 30, regex=str(FORCING + 5), stream=True)
    scheduler.run()
    assert answers(scheduler)["r"] == solo_with_grammar([1, 2, 3], 30, VOCAB, FORCING + 5)
    assert jumps(scheduler) and scheduler.answers["r"].messages > 5


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [VOCAB - 1]},
        {"allowed_token_ids": list(range(VOCAB))},
        {"logprobs": LogprobRequest(top_num=1)},
    ],
    ids=["stop tokens", "rules", "logprobs"],
)
def test_whose_tokens_are_looked_at_does_not_jump(fields: dict[str, Any]) -> None:
    scheduler = LateScheduler(Setup(jump_forward=True))
    scheduler.send("r", [1, 2, 3], 30, regex=str(FORCING + 5), **fields)
    scheduler.run()
    assert jumps(scheduler) == 0
    assert answers(scheduler)["r"]


def test_nobody_jumps_where_many_run_or_somebody_waits() -> None:
    scheduler = LateScheduler(Setup(jump_forward=True, grammar_delay=0))
    for number in range(MOST_RUNNING + 1):
        scheduler.send(f"r{number}", [number + 1], 24, regex=str(FORCING + number), ignore_eos=True)
    scheduler.turn(15)
    assert jumps(scheduler) == 0
    scheduler.run()
    for number in range(MOST_RUNNING + 1):
        assert answers(scheduler)[f"r{number}"] == solo_with_grammar([number + 1], 24, VOCAB, FORCING + number)


def test_nobody_jumps_who_might_not_get_back() -> None:
    """Memory for the longest answers is asked for before anything is given up."""
    scheduler = LateScheduler(Setup(jump_forward=True, num_tokens=96, max_context=96))
    for rid in "abc":
        scheduler.send(rid, [ord(rid) % VOCAB], 60, regex=str(FORCING + 30))
    scheduler.run()
    expected = {rid: solo_with_grammar([ord(rid) % VOCAB], 60, VOCAB, FORCING + 30) for rid in "abc"}
    assert answers(scheduler) == expected


def test_an_abort_in_the_queue_after_a_jump() -> None:
    scheduler = LateScheduler(Setup(jump_forward=True))
    scheduler.send("r", [1, 2, 3], 24, regex=str(FORCING + 16))
    while not jumps(scheduler):
        scheduler.turn()
    scheduler.abort("r")
    scheduler.run()
    whole = solo_with_grammar([1, 2, 3], 24, VOCAB, FORCING + 16)
    told = answers(scheduler)["r"]
    assert told == whole[: len(told)] and len(told) >= 12
