"""Requests that wait or run for too long, by a clock of the test's own, and on the late device."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.shaky_memory import Shakes
from mysglang.srt.messages.outputs import TIMED_OUT, Abort, Length
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.intake import LOOK_S, RequestTimeouts
from mysglang.srt.scheduling.request import Req, StopWatch


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def run_all(scheduler: LateScheduler, clock: Clock, seconds_per_turn: float) -> None:
    while any(answer.finish is None for answer in scheduler.answers.values()):
        clock.now += seconds_per_turn
        scheduler.turn()
    scheduler.run()


@pytest.mark.promise(18)
def test_who_waits_too_long_is_answered_and_forgotten() -> None:
    """One slot: the first runs for about ten seconds, the second would wait as long, and the third comes later."""
    clock = Clock()
    scheduler = LateScheduler(Setup(num_slots=1, timeouts=RequestTimeouts(5.0, None, clock)))
    scheduler.send("first", [1, 2], 100, ignore_eos=True)
    scheduler.send("second", [3, 4], 4, ignore_eos=True)
    while scheduler.answers["second"].finish is None:
        clock.now += 0.1
        scheduler.turn()
        if len(scheduler.answers["first"].ids) == 80 and "third" not in scheduler.answers:
            scheduler.send("third", [5, 6], 4, ignore_eos=True)
    assert 1005 <= clock.now <= 1005.5
    finish = scheduler.answers["second"].finish
    assert isinstance(finish, Abort) and (finish.status, finish.kind) == (503, TIMED_OUT)
    assert "--req-waiting-timeout" in finish.message
    scheduler.send("third", [5, 6], 4, ignore_eos=True)
    run_all(scheduler, clock, 0.01)
    assert scheduler.answers["first"].ids == solo([1, 2], 100, VOCAB, ignore_eos=True)
    assert scheduler.answers["third"].ids == solo([5, 6], 4, VOCAB, ignore_eos=True)


def test_a_limit_shorter_than_the_usual_look_is_kept() -> None:
    clock = Clock()
    scheduler = LateScheduler(Setup(num_slots=1, timeouts=RequestTimeouts(0.02, None, clock)))
    scheduler.send("first", [1, 2], 100, ignore_eos=True)
    scheduler.turn(3)
    scheduler.send("second", [3, 4], 4, ignore_eos=True)
    while scheduler.answers["second"].finish is None:
        clock.now += 0.005
        scheduler.turn()
    assert clock.now <= 1000.0 + 0.06
    finish = scheduler.answers["second"].finish
    assert isinstance(finish, Abort) and finish.kind == TIMED_OUT
    run_all(scheduler, clock, 0.001)
    assert scheduler.answers["first"].finish == Length(100)


@pytest.mark.promise(18)
@pytest.mark.parametrize("overlap", [False, True])
def test_who_runs_too_long_is_cut_off_with_what_it_has(overlap: bool) -> None:
    """The time in the queue does not count."""
    clock = Clock()
    scheduler = LateScheduler(Setup(overlap=overlap, num_slots=1, timeouts=RequestTimeouts(None, 5.0, clock)))
    for rid, number in (("a", 40), ("b", 40), ("c", 200)):
        scheduler.send(rid, [number, len(rid)], number, ignore_eos=True)
    run_all(scheduler, clock, 0.1)
    assert len(scheduler.answers["a"].ids) == len(scheduler.answers["b"].ids) == 40
    answer = scheduler.answers["c"]
    assert isinstance(answer.finish, Abort) and answer.finish.kind == TIMED_OUT
    assert "--req-running-timeout" in answer.finish.message
    assert 45 <= len(answer.ids) <= 55
    assert answer.ids == solo([200, 1], 200, VOCAB, ignore_eos=True)[: len(answer.ids)]


@pytest.mark.promise(18)
def test_the_running_time_goes_on_through_retractions() -> None:
    """A request that is retracted again and again gets no more time than others."""
    clock = Clock()
    timeouts = RequestTimeouts(None, 5.0, clock)
    scheduler = LateScheduler(Setup(timeouts=timeouts, shakes=Shakes(retract_every=3)))
    for rid, token in (("a", 200), ("b", 201)):
        scheduler.send(rid, [token, 1], 200, ignore_eos=True)
    run_all(scheduler, clock, 0.1)
    assert sum(answer.retractions for answer in scheduler.answers.values()) > 3
    for answer in scheduler.answers.values():
        assert isinstance(answer.finish, Abort) and answer.finish.kind == TIMED_OUT
    assert clock.now <= 1005.0 + 0.5


def test_who_waits_for_a_grammar_waits() -> None:
    clock = Clock()
    setup = Setup(timeouts=RequestTimeouts(2.0, None, clock), grammar_delay=1_000_000)
    scheduler = LateScheduler(setup)
    scheduler.send("r", [1, 2], 4, regex="7")
    run_all(scheduler, clock, LOOK_S)
    finish = scheduler.answers["r"].finish
    assert isinstance(finish, Abort) and finish.kind == TIMED_OUT
    assert 1002 <= clock.now <= 1002.5


def test_looks_now_and_then_and_forgets_who_is_gone() -> None:
    clock = Clock()
    timeouts = RequestTimeouts(1.0, 1.0, clock)
    scheduler = LateScheduler(Setup(timeouts=timeouts))
    for number in range(20):
        scheduler.send(f"r{number}", [1 + number], 3, ignore_eos=True)
        run_all(scheduler, clock, 0.2)
    clock.now += 1
    scheduler.turn()
    assert timeouts._seen == {}


def test_a_name_that_is_used_again_at_once_is_another_request() -> None:
    """A client may call all its requests the same, and send each before it was seen that the one before has ended."""
    clock = Clock()
    timeouts = RequestTimeouts(None, 1.0, clock)
    for _ in range(3):
        req = another_req()
        for _ in range(4):
            clock.now += 2 * LOOK_S
            assert timeouts.expired({"same": req}) == []
    clock.now += 0.5
    assert [abort.rid for abort in timeouts.expired({"same": req})] == ["same"]


def another_req() -> Req:
    """One that runs."""
    params = SamplingParams()
    watch = StopWatch(token_ids=(), text=None, min_new=0)
    ids = np.asarray([1, 2], dtype=np.int32)
    return Req(
        rid="same",
        ids=ids,
        prompt_len=2,
        sampling=params,
        max_new=4,
        stream=True,
        extra_key="",
        stop_watch=watch,
        started=True,
    )
