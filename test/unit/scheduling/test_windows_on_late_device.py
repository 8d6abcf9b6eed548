"""Schedulers over models of which some layers see a window: the late device holds these layers' keys in pools of their
own, checks in every step that each new token finds its whole window there, and poisons what was freed."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import PoisonRead, solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import rush
from fixtures.shaky_memory import Shakes
from mysglang.srt.messages.outputs import Abort

BEGINNING = list(range(1, 40))
SHAKES = Shakes(retract_every=3, fail_alloc_every=7)
TIGHT = ((8, 96), (20, 150))
SETUPS = {
    "overlap": Setup(overlap=True, chunk=24, num_tokens=1024, windows=TIGHT),
    "mixed": Setup(overlap=True, page_size=16, order="mixed", chunk=32, num_tokens=1024, windows=((8, 300), (20, 400))),
    "seven drafts": Setup(overlap=True, chunk=24, num_tokens=1024, windows=TIGHT, drafts=7),
    "drafts in pages": Setup(overlap=True, page_size=16, num_tokens=1024, windows=((8, 300),), drafts=4, order="mixed"),
    "sync": Setup(overlap=False, page_size=4, chunk=16, num_tokens=512, windows=TIGHT, policy="lpm"),
    "no cache": Setup(overlap=True, page_size=4, chunk=24, num_tokens=512, windows=TIGHT, cache="chunk"),
    "whole prompts": Setup(overlap=True, page_size=2, num_tokens=512, windows=((8, 200),), eviction="lfu"),
}


@pytest.mark.promise(22)
@pytest.mark.parametrize("shakes", [Shakes(), SHAKES], ids=["calm", "shaky"])
@pytest.mark.parametrize("name", SETUPS)
def test_as_alone(name: str, shakes: Shakes) -> None:
    """However short memory is, in each pool."""
    setup = replace(SETUPS[name], shakes=shakes, max_context=160)
    scheduler = LateScheduler(setup)
    rush(scheduler, random.Random(22), BEGINNING, requests=24, own=60, max_new=50)
    if shakes == SHAKES:
        assert scheduler.retractions > 5
    if setup.cache == "radix":
        assert sum(answer.cached_tokens for answer in scheduler.answers.values()) > 30


@pytest.mark.promise(14)
@pytest.mark.parametrize("name", SETUPS)
def test_abort_storm(name: str) -> None:
    rng = random.Random(14)
    scheduler = LateScheduler(replace(SETUPS[name], max_context=160))
    expected: dict[str, list[int]] = {}
    for number in range(50):
        prompt, max_new = [*BEGINNING, 1 + number % 40], rng.randrange(4, 40)
        scheduler.send(f"r{number}", prompt, max_new)
        expected[f"r{number}"] = solo(prompt, max_new, VOCAB)
        scheduler.turn(rng.randrange(2))
        scheduler.abort(f"r{rng.randrange(number + 1)}")
    scheduler.run()
    for rid, answer in scheduler.answers.items():
        whole = not isinstance(answer.finish, Abort)
        assert answer.ids == (expected[rid] if whole else expected[rid][: len(answer.ids)])


def test_many_rows_with_long_answers_in_a_small_pool() -> None:
    """Each keeps a window: without that the pool of 300 tokens would hold two of them."""
    scheduler = LateScheduler(Setup(num_tokens=2048, chunk=16, windows=((8, 300),), max_context=160))
    for number in range(10):
        scheduler.send(f"r{number}", [number + 1] * 30, 120, ignore_eos=True)
    scheduler.run()
    for number in range(10):
        assert scheduler.answers[f"r{number}"].ids == solo([number + 1] * 30, 120, VOCAB, ignore_eos=True)
    assert scheduler.retractions == 0
    assert scheduler.worker.most_in_flight == 2


def test_a_more_urgent_request_displaces_who_holds_a_windows_memory() -> None:
    setup = Setup(num_tokens=2048, chunk=16, windows=((40, 150),), max_context=160)
    scheduler = LateScheduler(replace(setup, priorities="high_first", preemption_threshold=0))
    for number in range(3):
        scheduler.send(f"r{number}", [number + 1] * 40, 100, ignore_eos=True)
    scheduler.turn(12)
    scheduler.send("urgent", [9] * 40, 10, ignore_eos=True, priority=5)
    scheduler.run()
    assert scheduler.answers["urgent"].ids == solo([9] * 40, 10, VOCAB, ignore_eos=True)
    for number in range(3):
        assert scheduler.answers[f"r{number}"].ids == solo([number + 1] * 40, 100, VOCAB, ignore_eos=True)


@pytest.mark.promise(24)
def test_a_page_freed_under_a_running_request_is_noticed() -> None:
    scheduler = LateScheduler(Setup(windows=((8, 300),), chunk=64))
    scheduler.send("r", BEGINNING, 40, ignore_eos=True)
    scheduler.turn(4)
    kv = scheduler.kv
    (window,) = kv.followers
    window.allocator.free(window.page_of[kv.rows.pages(0)[-3:]].astype(np.int32))
    window.num_read -= 3
    with pytest.raises(PoisonRead):
        for _ in range(3):
            scheduler.assembled.loop.step()
