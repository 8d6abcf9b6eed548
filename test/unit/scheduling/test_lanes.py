"""Two lanes: their steps take turns on the device, and whatever concerns a request finds it in whichever lane it is."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from fixtures.fake_grammar import solo_with_grammar
from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from fixtures.late_storm import Storm, drawn_beginnings, drawn_tokens, rush
from mysglang.srt.messages.control import (
    ContinueGenerationReq,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartBeat,
    PauseGenerationReq,
)
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.weights import UpdateWeightsReq, WeightUpdate

TWO = Setup(lanes=2, max_prefill_tokens=40, num_slots=12)
SETUPS = [
    Setup(lanes=2, overlap=overlap, page_size=page, chunk=chunk, order=order, max_prefill_tokens=64)
    for overlap, page, (chunk, order) in itertools.product(
        (False, True), (1, 16), ((None, "prefill_first"), (32, "bounded"), (48, "mixed"))
    )
]
SHORT = Setup(lanes=2, chunk=48, num_tokens=256, max_context=192, conservativeness=0.1)
TIGHT = [
    replace(SHORT, overlap=overlap, page_size=page, drafts=drafts)
    for overlap, page, drafts in ((False, 1, 0), (True, 1, 0), (False, 16, 0), (True, 16, 0), (True, 16, 4))
]


class Watched(LateScheduler):
    """Knows the most rows that each lane had."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.most = [0] * setup.lanes

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            super().turn()
            sizes = [len(lane.slots) for lane in self.assembled.scheduler.lanes.all]
            self.most = [max(pair) for pair in zip(self.most, sizes, strict=True)]


def both_running(setup: Setup = TWO, max_new: int = 60) -> Watched:
    """Requests that decode in both lanes, with a step of each in flight."""
    scheduler = Watched(setup)
    for number in range(6):
        scheduler.send(f"r{number}", [number + 1] * 20, max_new, ignore_eos=True)
    while min(scheduler.most) < 2:
        scheduler.turn()
    scheduler.turn()
    assert all(lane.pending is not None for lane in scheduler.assembled.scheduler.lanes.all) == setup.overlap
    return scheduler


def solo_answers(max_new: int = 60) -> dict[str, list[int]]:
    return {f"r{n}": solo([n + 1] * 20, max_new, VOCAB, ignore_eos=True) for n in range(6)}


def answers(scheduler: LateScheduler) -> dict[str, list[int]]:
    return {rid: answer.ids for rid, answer in scheduler.answers.items()}


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_every_answer_is_the_solo_one(setup: Setup) -> None:
    scheduler, rng = Watched(setup), random.Random(4)
    Storm(requests=40, max_new=40, turns=3, flush=0.05).rage(scheduler, rng, drawn_beginnings(rng, 4))
    assert min(scheduler.most) >= 2, "one of the lanes stood empty"


@pytest.mark.parametrize("setup", TIGHT, ids=str)
def test_memory_that_is_too_short_for_both(setup: Setup) -> None:
    scheduler, rng = Watched(setup), random.Random(5)
    rush(scheduler, rng, drawn_tokens(rng, 30), requests=30, own=60, max_new=80)
    assert min(scheduler.most) >= 1
    assert scheduler.retractions > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_each_lane_waits_for_its_own_masks(overlap: bool) -> None:
    scheduler = Watched(Setup(lanes=2, overlap=overlap, max_prefill_tokens=40))
    expected = {}
    for number in range(8):
        prompt = [number + 1] * 18
        scheduler.send(f"r{number}", prompt, 20, regex=str(number))
        expected[f"r{number}"] = solo_with_grammar(prompt, 20, VOCAB, number)
    scheduler.run()
    assert min(scheduler.most) >= 2
    assert answers(scheduler) == expected


def test_an_abort_finds_a_request_in_either_lane() -> None:
    for victim in range(6):
        scheduler = both_running()
        scheduler.abort(f"r{victim}")
        scheduler.turn()
        assert isinstance(scheduler.answers[f"r{victim}"].finish, Abort)
        scheduler.run()
        expected = solo_answers()
        stopped = scheduler.answers[f"r{victim}"].ids
        expected[f"r{victim}"] = expected[f"r{victim}"][: len(stopped)]
        assert answers(scheduler) == expected
    scheduler = both_running()
    scheduler.abort(abort_all=True)
    scheduler.turn()
    assert all(isinstance(answer.finish, Abort) for answer in scheduler.answers.values())
    scheduler.run()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_stops_both(mode: str) -> None:
    scheduler = both_running()
    scheduler.requests.send(PauseGenerationReq(id=1, mode=mode))  # type: ignore[arg-type]  # one of the modes
    scheduler.turn(3)
    launched = len(scheduler.worker.steps)
    scheduler.turn(3)
    assert len(scheduler.worker.steps) == launched and not scheduler.assembled.scheduler.in_flight
    assert scheduler.assembled.scheduler.lanes.size == (0 if mode == "retract" else 6)
    scheduler.requests.send(FlushCacheReqInput(id=2))
    scheduler.requests.send(ContinueGenerationReq(id=3))
    scheduler.turn()
    [flushed] = [reply for reply in scheduler.replies.drain() if isinstance(reply, FlushCacheReqOutput)]
    assert flushed.success == (mode == "retract"), "whoever runs holds the cache, in whichever lane"
    scheduler.run()
    assert answers(scheduler) == solo_answers()


def test_health_and_state_count_both() -> None:
    scheduler = both_running()
    scheduler.replies.drain()
    scheduler.assembled.scheduler.beat()
    scheduler.requests.send(GetInternalStateReq(id=1))
    scheduler.turn()
    replies = scheduler.replies.drain()
    [beat] = [reply for reply in replies if isinstance(reply, HeartBeat)]
    [state] = [reply for reply in replies if isinstance(reply, GetInternalStateReqOutput)]
    assert (beat.num_running_reqs, state.num_running_reqs) == (6, 6)
    assert state.num_waiting_reqs == 0
    scheduler.run()


def test_weights_change_when_no_lane_has_a_step_in_flight() -> None:
    scheduler = both_running()
    change = WeightUpdate(abort_all_requests=True, flush_cache=False)
    scheduler.requests.send(UpdateWeightsReq(id=1, path="new", whole=True, update=change))
    scheduler.turn()
    assert scheduler.assembled.scheduler.lanes.size == 0
    assert not [reply for reply in scheduler.replies.drain() if isinstance(reply, ControlReqOutput)]
    scheduler.turn()
    assert [reply for reply in scheduler.replies.drain() if isinstance(reply, ControlReqOutput)]
