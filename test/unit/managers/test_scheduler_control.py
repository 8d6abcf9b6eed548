"""Pausing and profiling a whole scheduler on the late device."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import orjson
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.messages.control import (
    Command,
    ContinueGenerationReq,
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    PauseGenerationReq,
    PauseMode,
    SetInternalStateReq,
    StartProfileReq,
    StopProfileReq,
)
from mysglang.srt.messages.outputs import Abort, Length

PROMPTS = {"a": [1, 2, 3], "b": [4, 5, 6, 7, 8], "c": list(range(1, 40))}


def ask(scheduler: LateScheduler, command: Command | FlushCacheReqInput) -> ControlReqOutput | FlushCacheReqOutput:
    scheduler.requests.send(command)
    scheduler.turn()
    [reply] = [
        reply for reply in scheduler.replies.drain() if isinstance(reply, (ControlReqOutput, FlushCacheReqOutput))
    ]
    assert reply.id == command.id
    return reply


def counted(scheduler: LateScheduler) -> tuple[int, int]:
    """How many run and how many wait, as the scheduler tells."""
    scheduler.requests.send(GetInternalStateReq(id=0))
    scheduler.turn()
    [state] = [reply for reply in scheduler.replies.drain() if isinstance(reply, GetInternalStateReqOutput)]
    return state.num_running_reqs, state.num_waiting_reqs


def test_the_state_has_the_programs_of_the_moment() -> None:
    scheduler = LateScheduler(Setup())
    for programs in ({"eager": "every step"}, {"captured": "1 row", "eager": "every step"}):
        scheduler.worker.programs = programs
        scheduler.requests.send(GetInternalStateReq(id=0))
        scheduler.turn()
        [state] = [reply for reply in scheduler.replies.drain() if isinstance(reply, GetInternalStateReqOutput)]
        assert state.programs == programs


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["retract", "in_place"])
@pytest.mark.parametrize("turns", [1, 2, 4, 7])
def test_a_pause_changes_no_answer(overlap: bool, mode: PauseMode, turns: int) -> None:
    scheduler = LateScheduler(Setup(overlap=overlap, chunk=16))
    for rid, prompt in PROMPTS.items():
        scheduler.send(rid, prompt, 20, ignore_eos=True)
    scheduler.turn(turns)
    assert ask(scheduler, PauseGenerationReq(id=1, mode=mode)).success
    scheduler.turn(2)
    steps = len(scheduler.worker.steps)
    scheduler.send("late", [9, 9], 20, ignore_eos=True)
    scheduler.turn(5)
    assert len(scheduler.worker.steps) == steps
    assert scheduler.answers["late"].finish is None
    running, waiting = counted(scheduler)
    assert running + waiting == 4 and (running == 0 or mode == "in_place")
    # What was retracted holds no memory: the cache can be emptied, as weights that change demand.
    assert ask(scheduler, FlushCacheReqInput(id=2)).success == (mode == "retract")
    assert ask(scheduler, ContinueGenerationReq(id=3)).success
    scheduler.run()
    for rid, prompt in {**PROMPTS, "late": [9, 9]}.items():
        assert scheduler.answers[rid].ids == solo(prompt, 20, VOCAB, ignore_eos=True)
        assert scheduler.answers[rid].finish == Length(20)


def test_a_pause_can_end_what_runs() -> None:
    scheduler = LateScheduler(Setup())
    scheduler.send("a", PROMPTS["a"], 20, ignore_eos=True)
    scheduler.turn(5)
    assert ask(scheduler, PauseGenerationReq(id=1)).message == "Generation paused (abort); 1 request was open."
    assert isinstance(scheduler.answers["a"].finish, Abort)
    scheduler.send("b", PROMPTS["b"], 5, ignore_eos=True)
    scheduler.turn(5)
    assert scheduler.answers["b"].finish is None
    ask(scheduler, ContinueGenerationReq(id=2))
    scheduler.run()
    assert scheduler.answers["b"].ids == solo(PROMPTS["b"], 5, VOCAB, ignore_eos=True)


def test_options_change_while_requests_run() -> None:
    """Requests that begin later stream by the new interval; the answers are the same."""
    scheduler = LateScheduler(Setup())
    scheduler.send("a", PROMPTS["a"], 20, ignore_eos=True, stream=True)
    scheduler.turn(3)
    asked = SetInternalStateReq(id=1, stream_interval=7, schedule_conservativeness=0.5)
    reply = ask(scheduler, asked)
    assert isinstance(reply, ControlReqOutput)
    assert reply.details == {"schedule_conservativeness": 0.5, "stream_interval": 7, "decode_log_interval": 40}
    scheduler.send("b", PROMPTS["b"], 20, ignore_eos=True, stream=True)
    pieces: dict[str, int] = {"a": 0, "b": 0}
    while scheduler.assembled.scheduler.reqs:
        before = {rid: len(answer.ids) for rid, answer in scheduler.answers.items()}
        scheduler.turn()
        for rid in pieces:
            pieces[rid] += len(scheduler.answers[rid].ids) > before[rid]
    assert pieces["a"] > 10 and pieces["b"] <= 4
    for rid in pieces:
        assert scheduler.answers[rid].ids == solo(PROMPTS[rid], 20, VOCAB, ignore_eos=True)


def test_a_profile_by_steps_and_by_hand(tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup())
    numbers = itertools.count(1)

    def start(name: str, steps: int | None = None, activity: str = "CPU") -> ControlReqOutput | FlushCacheReqOutput:
        activities = [activity]
        message = StartProfileReq(
            id=next(numbers),
            output_dir=str(tmp_path / "new"),
            name=name,
            activities=activities,  # type: ignore[arg-type]
            num_steps=steps,
        )
        return ask(scheduler, message)

    assert not ask(scheduler, StopProfileReq(id=next(numbers))).success
    assert start("steps", 3).success
    assert not start("twice").success
    scheduler.send("a", PROMPTS["a"], 10, ignore_eos=True)
    scheduler.run()
    assert (tmp_path / "new" / "steps.trace.json.gz").exists()
    assert start("hand").success
    assert ask(scheduler, StopProfileReq(id=next(numbers))).success
    assert "traceEvents" in orjson.loads(gzip.decompress((tmp_path / "new" / "hand.trace.json.gz").read_bytes()))
    (tmp_path / "file").write_text("")
    message = StartProfileReq(id=99, output_dir=str(tmp_path / "file"), name="x", activities=["CPU"])
    assert not ask(scheduler, message).success
