"""Each reason for which a step is settled before the next goes on, and that it is counted by its name."""

from __future__ import annotations

import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.messages.control import PauseGenerationReq
from mysglang.srt.observability import instruments as told
from mysglang.srt.scheduling.lane import SettleReason
from mysglang.srt.scheduling.step_planner import OrderName

PLAIN = Setup()
FULL = Setup(num_tokens=128, max_context=60, num_slots=4, conservativeness=0.05)


def counted(scheduler: LateScheduler) -> dict[str, float]:
    """How often, by reason; those that never were are left out."""
    parts = scheduler.assembled.scheduler._parts
    row = parts.stats.figures(parts.waiting, compiling=0).counted
    counts = {reason: told.SCHEDULER.part(row, counter)[0] for reason, counter in told.SETTLED_FIRST.items()}
    return {reason: count for reason, count in counts.items() if count}


def run_out_of_memory(scheduler: LateScheduler) -> None:
    for number in range(4):
        # A request that may end by a token is expected to, and min_new_tokens prevents it.
        scheduler.send(f"r{number}", [number + 3] * 12, 40, min_new_tokens=40)
        scheduler.turn()
    scheduler.run()


def reach_the_limit(scheduler: LateScheduler) -> None:
    scheduler.send("r", [3, 4, 5], 8, ignore_eos=True)
    scheduler.run()


def try_drafts(scheduler: LateScheduler) -> None:
    scheduler.send("r", [3, 4, 5], 100, ignore_eos=True)
    scheduler.turn(20)


def follow_a_grammar(scheduler: LateScheduler) -> None:
    scheduler.send("r", [3, 4, 5], 8, regex="5")
    scheduler.turn(8)


def pause(scheduler: LateScheduler) -> None:
    scheduler.send("r", [3, 4, 5], 20, ignore_eos=True)
    scheduler.turn(4)
    scheduler.requests.send(PauseGenerationReq(id=1, mode="in_place"))
    scheduler.turn(3)


CASES = {
    "memory": (FULL, run_out_of_memory),
    "limit": (PLAIN, reach_the_limit),
    "lengths": (Setup(drafts=4, late_lengths=False), try_drafts),
    "mask": (PLAIN, follow_a_grammar),
    "pause": (PLAIN, pause),
}


@pytest.mark.parametrize("reason", CASES)
def test_it_is_counted(reason: SettleReason) -> None:
    setup, provoke = CASES[reason]
    scheduler = LateScheduler(setup)
    provoke(scheduler)
    assert counted(scheduler)[reason] >= 1
    if reason != "memory":
        assert counted(scheduler).keys() == {reason}


def test_steps_that_nothing_keeps_apart_are_not() -> None:
    scheduler = LateScheduler(PLAIN)
    scheduler.send("r", [3, 4, 5], 100, ignore_eos=True)
    scheduler.turn(50)
    assert not counted(scheduler)


def test_nobody_is_retracted_while_a_result_may_still_give_memory_back() -> None:
    scheduler = LateScheduler(FULL)
    in_flight: list[bool] = []
    retraction = scheduler.assembled.scheduler._parts.planner._decode._retraction
    retract = retraction.retract

    def watched(slot: int, why: str = "") -> object:
        in_flight.append(scheduler.assembled.scheduler.in_flight)
        return retract(slot, why)

    retraction.retract = watched  # type: ignore[method-assign, assignment]
    run_out_of_memory(scheduler)
    assert in_flight and not any(in_flight)


@pytest.mark.parametrize("order", ["prefill_first", "bounded", "mixed"])
def test_no_prompt_takes_what_running_rows_lack(order: OrderName) -> None:
    """A turn that finds no memory for the next tokens launches nothing, though a prompt waits that would fit."""
    scheduler = LateScheduler(Setup(order=order, decode_wait_tokens=1))
    scheduler.send("runs", [3] * 12, 40, ignore_eos=True)
    scheduler.turn(4)
    [lane] = scheduler.assembled.scheduler.lanes.all
    extend_rows, launched = scheduler.kv.extend_rows, len(scheduler.worker.steps)
    scheduler.kv.extend_rows = lambda *_: False  # type: ignore[method-assign]
    scheduler.send("waits", [4] * 12, 40, ignore_eos=True)
    lane.waited = 1
    scheduler.turn()
    assert len(scheduler.worker.steps) == launched + (order == "prefill_first")
    scheduler.kv.extend_rows = extend_rows  # type: ignore[method-assign]
    scheduler.run()
    assert [answer.retractions for answer in scheduler.answers.values()] == [0, 0]
