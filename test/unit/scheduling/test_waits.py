"""Promise 19: how long running requests wait for prompts, and prompts for running requests, is bounded both ways."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import RATES, VOCAB, LateScheduler, Setup
from mysglang.srt.scheduling.step_lengths import AMORTIZED
from mysglang.srt.scheduling.step_planner import OrderName

CHUNK, LIMIT = 32, 96
SETUP = Setup(chunk=CHUNK, num_tokens=8192, max_context=512, num_slots=32, order="bounded", decode_wait_tokens=LIMIT)

LONGEST = int(AMORTIZED * RATES.weights_s / RATES.token_s)
"""Tokens of the longest step that is short for the late device."""

BOTH: tuple[OrderName, ...] = ("bounded", "prefill_first")


def prompt_tokens_between_steps(scheduler: LateScheduler, slot: int) -> list[int]:
    """For each two neighbouring steps of the row in `slot`: the prompt tokens of others that were computed between."""
    waits, since = [], 0
    for step in scheduler.worker.steps:
        if slot in step.slots:
            waits.append(since)
            since = 0
        elif not step.mode.is_decode:
            since += int(step.extend_lens.sum())
    return waits


def under_steady_arrivals(order: OrderName, *, overlap: bool = True) -> LateScheduler:
    """One request that decodes, while a new prompt comes in every turn."""
    scheduler = LateScheduler(replace(SETUP, order=order, overlap=overlap))
    scheduler.send("running", [1], 12, ignore_eos=True)
    scheduler.turn(3)
    for i in range(60):
        scheduler.send(f"prompt{i}", [2 + i] * CHUNK, 1, ignore_eos=True)
        scheduler.turn()
    scheduler.run()
    assert scheduler.answers["running"].ids == solo([1], 12, VOCAB, ignore_eos=True)
    return scheduler


@pytest.mark.promise(19)
@pytest.mark.parametrize("overlap", [False, True])
def test_promise_19_a_running_request_waits_for_so_many_prompt_tokens_at_most(overlap: bool) -> None:
    waits = prompt_tokens_between_steps(under_steady_arrivals("bounded", overlap=overlap), 0)
    # The step that reaches the limit is done to its end.
    assert LIMIT <= max(waits) <= LIMIT - 1 + CHUNK


@pytest.mark.promise(19)
@pytest.mark.parametrize("overlap", [False, True])
def test_promise_19_while_answers_stream_a_row_waits_for_short_steps_alone(overlap: bool) -> None:
    """As long as the costs of steps say, a fraction of a chunk. An answer that is sent as a whole may wait longer."""
    waits = {}
    for stream in (True, False):
        scheduler = LateScheduler(replace(SETUP, chunk=256, order="short", decode_wait_tokens=512, overlap=overlap))
        scheduler.send("running", [1], 100, ignore_eos=True, stream=stream)
        scheduler.turn(3)
        for i in range(12):
            scheduler.send(f"prompt{i}", [2 + i] * 200, 1, ignore_eos=True, stream=stream)
        scheduler.run()
        assert scheduler.answers["running"].ids == solo([1], 100, VOCAB, ignore_eos=True)
        shared = [int(step.extend_lens.sum()) for step in scheduler.worker.steps[1:] if 0 in step.slots]
        waits[stream] = max(*shared, *prompt_tokens_between_steps(scheduler, 0))
    assert waits[True] <= LONGEST and waits[False] >= 512


def test_prompts_that_always_go_first_know_no_such_bound() -> None:
    assert max(prompt_tokens_between_steps(under_steady_arrivals("prefill_first"), 0)) > 10 * LIMIT


@pytest.mark.promise(19)
def test_promise_19_a_prompt_waits_for_one_step_of_the_running_at_most() -> None:
    """Two dozen decode on and on, and long prompts come: these wait for one step of the others at a time."""
    scheduler = LateScheduler(SETUP)
    for i in range(24):
        scheduler.send(f"running{i}", [i + 1], 100, ignore_eos=True)
    scheduler.turn(4)
    before = len(scheduler.worker.steps)
    for i in range(4):
        scheduler.send(f"prompt{i}", [40 + i] * 300, 2, ignore_eos=True)
    scheduler.run()
    kinds = [step.mode.is_decode for step in scheduler.worker.steps[before:]]
    runs = [(decode, len(list(group))) for decode, group in itertools.groupby(kinds)]
    last_prompt = max(i for i, (decode, _) in enumerate(runs) if not decode)
    assert last_prompt > 10
    assert all(count == 1 for decode, count in runs[:last_prompt] if decode)
    assert all(count <= LIMIT // CHUNK for decode, count in runs if not decode)


@pytest.mark.parametrize("prompts", [1, 3])
def test_while_nobody_runs_nothing_is_different(prompts: int) -> None:
    """Prompts that come to an empty batch go to their end, however long they are."""
    shapes = {}
    for order in BOTH:
        scheduler = LateScheduler(replace(SETUP, order=order))
        for i in range(prompts):
            scheduler.send(f"prompt{i}", [i + 1] * 400, 4, ignore_eos=True)
            scheduler.run()
        shapes[order] = [step.extend_lens.tolist() for step in scheduler.worker.steps]
    assert shapes["bounded"] == shapes["prefill_first"]


def test_all_at_once_costs_one_step_for_each_bound_at_most() -> None:
    """As many prompts as there is room for, at the same moment: what the bound adds to the number of steps is small."""
    steps = {}
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 100, (32, 2)).tolist()
    for order in BOTH:
        scheduler = LateScheduler(replace(SETUP, order=order))
        for i, (prompt, answer) in enumerate(lengths):
            scheduler.send(f"r{i}", [i + 1] * prompt, answer, ignore_eos=True)
        scheduler.run()
        steps[order] = len(scheduler.worker.steps)
    assert steps["bounded"] - steps["prefill_first"] <= sum(prompt for prompt, _ in lengths) // LIMIT
