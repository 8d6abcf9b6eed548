"""Profiles of a whole scheduler on the late device: which steps are in them, and that they change no answer."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.managers import step_trace
from mysglang.srt.managers.step_trace import StepTrace
from mysglang.srt.messages.control import Command, ControlReqOutput, StartProfileReq, StopProfileReq

PROMPT = [1, 2, 3]


def ask(scheduler: LateScheduler, command: Command) -> ControlReqOutput:
    scheduler.requests.send(command)
    scheduler.turn()
    [reply] = [reply for reply in scheduler.replies.drain() if isinstance(reply, ControlReqOutput)]
    return reply


def start(scheduler: LateScheduler, folder: Path, **fields: Any) -> ControlReqOutput:
    named = {"id": 1, "output_dir": str(folder), "name": "p", "activities": ["STEPS"], **fields}
    return ask(scheduler, StartProfileReq(**named))


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def launches(path: Path) -> list[dict[str, Any]]:
    return [event["args"] for event in events(path) if event["name"] == "launch"]


def answer(scheduler: LateScheduler, tokens: int) -> None:
    scheduler.send("a", PROMPT, tokens, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["a"].ids == solo(PROMPT, tokens, VOCAB, ignore_eos=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_phases_of_every_step(overlap: bool, tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup(overlap=overlap))
    loop = scheduler.assembled.loop
    driven, sender = loop.scheduler, scheduler.assembled.scheduler._parts.streamer.to_detokenizer
    assert start(scheduler, tmp_path / "new", num_steps=4).success
    assert loop.scheduler is not driven
    answer(scheduler, 10)
    path = tmp_path / "new" / "p.steps.trace.json.gz"
    assert [step["mode"] for step in launches(path)][:4] == ["extend", "decode", "decode", "decode"]
    assert launches(path)[0] == {"mode": "extend", "rows": 1, "prompts": 1, "new_tokens": 3, "cached_tokens": 0}
    kinds = Counter(event["name"] for event in events(path) if event["ph"] == "X")
    assert kinds["apply"] == 4 and kinds["launch"] == 4 + overlap and kinds["plan"] >= 4 and kinds["send"] >= 1
    ends = [event["id"] for event in events(path) if event["ph"] == "e"]
    assert ends == [1, 2, 3, 4]
    [first, *_] = [event["args"] for event in events(path) if event["ph"] == "C" and event["name"] == "requests"]
    assert first == {"running": 1, "waiting": 0}
    # Nothing of the recording is left behind.
    assert loop.scheduler is driven and scheduler.assembled.scheduler._parts.streamer.to_detokenizer is sender


def test_a_recording_that_begins_at_a_step(tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup(overlap=False))
    assert start(scheduler, tmp_path, num_steps=2, start_step=5).success
    answer(scheduler, 12)
    assert [step["mode"] for step in launches(tmp_path / "p.steps.trace.json.gz")] == ["decode", "decode"]
    assert start(scheduler, tmp_path, start_step=10**6, id=2).success
    stopped = ask(scheduler, StopProfileReq(id=3))
    assert not stopped.success and "had not begun" in stopped.message


@pytest.mark.parametrize("overlap", [False, True])
def test_a_recording_for_each_stage(overlap: bool, tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup(overlap=overlap))
    assert start(scheduler, tmp_path, num_steps=3, stages=["prefill", "decode"], activities=["STEPS", "CPU"]).success
    answer(scheduler, 10)
    assert [step["mode"] for step in launches(tmp_path / "p-EXTEND.steps.trace.json.gz")] == ["extend"]
    assert [step["mode"] for step in launches(tmp_path / "p-DECODE.steps.trace.json.gz")][:3] == ["decode"] * 3
    assert events(tmp_path / "p-DECODE.trace.json.gz") and events(tmp_path / "p-EXTEND.trace.json.gz")
    assert not ask(scheduler, StopProfileReq(id=2)).success


def test_one_stage_alone(tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup(overlap=False))
    assert start(scheduler, tmp_path, num_steps=2, stages=["decode"]).success
    answer(scheduler, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["p-DECODE.steps.trace.json.gz"]


def test_a_profile_that_is_stopped_says_where_it_is(tmp_path: Path) -> None:
    scheduler = LateScheduler(Setup())
    assert start(scheduler, tmp_path, activities=["CPU", "STEPS"]).success
    assert "recorded already" in start(scheduler, tmp_path, id=2).message
    answer(scheduler, 3)
    stopped = ask(scheduler, StopProfileReq(id=3))
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["p.steps.trace.json.gz", "p.trace.json.gz"]
    assert stopped.success and all(str(path) in stopped.message for path in files)


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    refused = start(LateScheduler(Setup()), tmp_path, activities=["GPU"])
    assert not refused.success and "there is no GPU" in refused.message


def test_a_trace_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(step_trace, "MAX_EVENTS", 3)
    trace = StepTrace()
    for number in range(5):
        trace.count("n", {"n": number})
    trace.write(tmp_path / "t.json.gz", "x")
    whole = orjson.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert whole["dropped_events"] == 2
    assert [event["args"]["n"] for event in whole["traceEvents"] if event["ph"] == "C"] == [0, 1, 2]
