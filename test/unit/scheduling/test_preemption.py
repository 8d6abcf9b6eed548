"""An urgent request displaces running ones, by more than a threshold, if that helps it; and they lose nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.messages.outputs import Length
from mysglang.srt.scheduling.step_planner import OrderName

SETUP = Setup(
    num_slots=2, num_tokens=4096, max_context=512, priorities="high_first", preemption_threshold=10, overlap=False
)


def busy(setup: Setup, priorities: tuple[int, ...] = (0, 5), steps: int = 60) -> LateScheduler:
    """Every place is taken for a long time."""
    scheduler = LateScheduler(setup)
    for i, priority in enumerate(priorities):
        scheduler.send(f"running{i}", [i + 1] * 20, steps, ignore_eos=True, priority=priority)
    scheduler.turn(5)
    return scheduler


def retracted(scheduler: LateScheduler) -> list[str]:
    """Run to the end: who was displaced, and that everybody was answered as if nothing had happened."""
    scheduler.run()
    for rid, answer in scheduler.answers.items():
        if rid.startswith("running"):
            assert answer.ids == solo([int(rid[-1]) + 1] * 20, len(answer.ids), VOCAB, ignore_eos=True)
            assert answer.completion_tokens == len(answer.ids) == 60
    return [rid for rid, answer in scheduler.answers.items() if answer.retractions]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("order", ["prefill_first", "bounded", "mixed"])
def test_the_urgent_gets_the_place_of_the_least_urgent_at_once(overlap: bool, order: OrderName) -> None:
    scheduler = busy(replace(SETUP, overlap=overlap, order=order, chunk=16 if order == "mixed" else None))
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=20)
    scheduler.turn(12)
    assert scheduler.answers["urgent"].finish is not None
    assert retracted(scheduler) == ["running0"]


@pytest.mark.parametrize(("priority", "victims"), [(10, []), (11, ["running0"]), (15, ["running0"])])
def test_the_threshold_must_be_exceeded(priority: int, victims: list[str]) -> None:
    scheduler = busy(SETUP)
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=priority)
    assert retracted(scheduler) == victims


def test_small_values_may_be_the_urgent_ones() -> None:
    scheduler = busy(replace(SETUP, priorities="low_first"))
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=-6)
    assert retracted(scheduler) == ["running1"]


def test_of_equals_those_go_that_joined_last() -> None:
    scheduler = busy(SETUP, (0, 0))
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=20)
    assert retracted(scheduler) == ["running1"]


def test_without_a_threshold_nobody_is_displaced() -> None:
    scheduler = busy(replace(SETUP, preemption_threshold=None))
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=1000)
    assert retracted(scheduler) == []


TIGHT = replace(SETUP, num_slots=8, num_tokens=256, max_context=256)


def test_as_many_go_as_memory_needs() -> None:
    """Three hold 80 tokens each of 256, to their ends; the urgent one wants 100."""
    scheduler = busy(TIGHT, (0, 1, 2))
    scheduler.send("urgent", [40] * 90, 10, ignore_eos=True, priority=50)
    scheduler.turn(14)
    assert scheduler.answers["urgent"].finish is not None
    assert "running2" not in (gone := retracted(scheduler)) and gone[0] == "running0"


def test_nobody_goes_in_vain() -> None:
    """All that it outranks would not make room enough: it waits, and they run on."""
    scheduler = busy(TIGHT, (0, 45, 45))
    scheduler.send("urgent", [40] * 150, 60, ignore_eos=True, priority=50)
    scheduler.turn(8)
    assert all(answer.retractions == 0 for answer in scheduler.answers.values())
    assert retracted(scheduler) == []


def test_a_prompt_half_computed_gives_way_too() -> None:
    scheduler = LateScheduler(replace(SETUP, num_slots=1, chunk=16))
    scheduler.send("running0", [1] * 20 * 1, 60, ignore_eos=True)
    scheduler.send("bulk", [5] * 400, 2, ignore_eos=True)
    scheduler.abort("running0")
    scheduler.turn(4)
    scheduler.send("urgent", [40] * 10, 5, ignore_eos=True, priority=20)
    scheduler.turn(10)
    assert scheduler.answers["urgent"].finish is not None and scheduler.answers["bulk"].finish is None
    scheduler.run()
    assert scheduler.answers["bulk"].ids == solo([5] * 400, 2, VOCAB, ignore_eos=True)


def test_it_is_asked_again_when_the_running_took_what_was_free() -> None:
    """The urgent request fits when it arrives, until in the same step the running ones take a page each."""
    setup = replace(SETUP, num_slots=8, num_tokens=512, order="mixed", overlap=True, page_size=16, chunk=16)
    scheduler = LateScheduler(replace(setup, preemption_threshold=0))
    for i, (length, max_new) in enumerate(((39, 60), (18, 150), (27, 100), (38, 150), (7, 60), (27, 150))):
        scheduler.send(f"running{i}", [i + 1] * length, max_new, ignore_eos=True)
    scheduler.turn(28)
    scheduler.send("urgent", [50] * 204, 20, ignore_eos=True, priority=9)
    scheduler.turn(5)
    assert scheduler.assembled.scheduler.reqs["urgent"].started
    scheduler.run()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("order", ["prefill_first", "bounded", "mixed"])
def test_under_storms_of_priorities_and_tenants_every_answer_is_what_it_would_be_alone(
    order: OrderName, overlap: bool
) -> None:
    """Little memory, chunks, aborts, fair shares and displacement at once; memory adds up at every turn."""
    setup = replace(TIGHT, num_slots=5, chunk=16, conservativeness=0.2, preemption_threshold=2, page_size=2)
    scheduler = LateScheduler(
        replace(setup, order=order, overlap=overlap, policy="hrrn", fair_share_by="api_key", eviction="priority")
    )
    rng = np.random.default_rng(11)
    asked = {}
    for i in range(60):
        prompt = [*[int(rng.integers(1, 4))] * int(rng.integers(1, 40)), i % 60 + 1]
        max_new = int(rng.integers(1, 50))
        asked[f"r{i}"] = (prompt, max_new)
        owner, priority = f"tenant{rng.integers(3)}", int(rng.integers(-6, 7))
        scheduler.send(f"r{i}", prompt, max_new, ignore_eos=True, priority=priority, api_key=owner)
        scheduler.turn(int(rng.integers(0, 5)))
        if i % 9 == 8:
            scheduler.abort(f"r{i - 3}")
    scheduler.run()
    whole = [rid for rid, answer in scheduler.answers.items() if isinstance(answer.finish, Length)]
    assert len(whole) >= 50 and sum(answer.retractions for answer in scheduler.answers.values()) > 5
    for rid in whole:
        prompt, max_new = asked[rid]
        assert scheduler.answers[rid].ids == solo(prompt, max_new, VOCAB, ignore_eos=True)
