"""The times of a request's stages in its last message, in order and only if they were enabled."""

from __future__ import annotations

import time

import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from mysglang.srt.messages.outputs import BatchTokenIDOutput, RequestTimes


def times_of(scheduler: LateScheduler) -> dict[str, RequestTimes]:
    """Times in every message, by request."""
    told: dict[str, RequestTimes] = {}
    send = scheduler.outputs.send

    def listen(message: BatchTokenIDOutput) -> None:
        for row, times in message.times.items():
            assert row in message.finished
            assert message.rids[row] not in told
            told[message.rids[row]] = times
        send(message)

    scheduler.outputs.send = listen  # type: ignore[method-assign, assignment]
    scheduler.run()
    return told


def in_order(times: RequestTimes) -> bool:
    return 0 < times.arrived <= times.started <= times.first_token <= times.ended <= time.perf_counter()


@pytest.mark.parametrize("overlap", [False, True])
def test_every_request_is_told_of_once(overlap: bool) -> None:
    scheduler = LateScheduler(Setup(timed=True, overlap=overlap, chunk=16, num_slots=2))
    for number in range(4):
        scheduler.send(f"r{number}", list(range(2, 42)), 3 * number + 2, ignore_eos=True)
    told = times_of(scheduler)
    assert sorted(told) == ["r0", "r1", "r2", "r3"]
    assert all(in_order(times) for times in told.values())
    # Two places: the third request starts when another one has ended.
    assert told["r2"].started >= min(told["r0"].ended, told["r1"].ended)
    assert told["r0"].first_token < told["r0"].ended


def test_of_one_token_the_first_is_the_end() -> None:
    scheduler = LateScheduler(Setup(timed=True, overlap=False))
    scheduler.send("r", [2, 3], 1, ignore_eos=True)
    times = times_of(scheduler)["r"]
    assert in_order(times) and times.first_token == times.ended


def test_a_retracted_request_keeps_its_first_times() -> None:
    setup = Setup(timed=True, num_tokens=128, max_context=128, num_slots=3, conservativeness=0.1)
    scheduler = LateScheduler(setup)
    for number in range(3):
        scheduler.send(f"r{number}", [number + 2] * 4, 80, min_new_tokens=80)
    told = times_of(scheduler)
    assert scheduler.retractions > 0
    assert all(in_order(times) for times in told.values())
    firsts = [times.first_token for times in told.values()]
    assert max(firsts) < min(times.ended for times in told.values())


def test_who_never_started_has_no_times_but_its_own() -> None:
    scheduler = LateScheduler(Setup(timed=True, num_slots=1))
    scheduler.send("first", [2, 3], 30, ignore_eos=True)
    scheduler.send("second", [2, 3], 30, ignore_eos=True)
    for _ in range(4):
        scheduler.assembled.loop.step()
    scheduler.abort("second")
    second = times_of(scheduler)["second"]
    assert second.arrived > 0 and second.ended > second.arrived
    assert (second.started, second.first_token) == (0, 0)


def test_nobody_asked() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("r", [2, 3], 3)
    assert times_of(scheduler) == {}
