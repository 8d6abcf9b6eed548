"""Which requests a crash dump holds, and what of them: no word of a client, unless contents are asked for."""

from __future__ import annotations

import errno
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest

from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.entrypoints import crash_records as module
from mysglang.srt.entrypoints.crash_records import NoCrashRecords, RecentRequests, crash_records
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.sampling.sampling_params import SamplingParams

SECRET = "what nobody else may read"
PARAMS = SamplingParams(temperature=0.0, max_new_tokens=9, stop=[SECRET])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(rid: str, **fields: Any) -> GenerateReqInput:
    return GenerateReqInput(text=SECRET, rid=rid, sampling_params=PARAMS, **fields)


async def chunks(*, end: bool = True) -> AsyncGenerator[GenerationChunk, None]:
    for number in (1, 2):
        yield GenerationChunk(
            index=0,
            rid="x",
            text=SECRET,
            token_bytes=pack_ids([7]),
            finish_reason=Stop(2) if end and number == 2 else None,
            prompt_tokens=5,
            completion_tokens=number,
            cached_tokens=3,
            retractions=0,
            prompt_bytes=pack_ids([1, 2, 3, 4, 5]),
        )


async def finish(records: RecentRequests, obj: GenerateReqInput) -> None:
    assert [chunk.completion_tokens async for chunk in records.watched(obj, chunks())] == [1, 2]


def found(records: RecentRequests) -> list[dict[str, Any]]:
    head, *rest = map(orjson.loads, records.lines("it broke"))
    assert head["crash"] == "it broke"
    return rest


async def test_lengths_and_numbers_alone(tmp_path: Path) -> None:
    clock = Clock()
    records = RecentRequests(tmp_path, contents=False, clock=clock)
    await finish(records, request("a"))
    running = records.watched(request("b", stream=True), chunks(end=False))
    await anext(running)
    clock.now += 2
    first, second = found(records)
    assert first["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 9}
    counts = {"prompt_tokens": 5, "cached_tokens": 3, "completion_tokens": 2, "finished": "stop"}
    assert (first["rid"], first["open"], first["counts"]) == ("a", False, [counts])
    assert first["prompts"] == [{"characters": len(SECRET)}]
    assert (second["rid"], second["open"], second["seconds"]) == ("b", True, 2.0)
    assert second["counts"][0] == {**counts, "completion_tokens": 1, "finished": None}
    assert SECRET.encode() not in b"".join(records.lines("x"))
    await running.aclose()
    assert [each["open"] for each in found(records)] == [False, False]


async def test_contents_where_they_are_asked_for(tmp_path: Path) -> None:
    records = RecentRequests(tmp_path, contents=True)
    await finish(records, request("a"))
    [record] = found(records)
    assert record["request"]["input_ids"] == [1, 2, 3, 4, 5]
    assert record["request"]["sampling_params"]["stop"] == [SECRET]
    assert record["answers"][0]["output_ids"] == [7, 7]


async def test_no_logs_is_honoured(tmp_path: Path) -> None:
    records = RecentRequests(tmp_path, contents=True)
    await finish(records, request("a", no_logs=True))
    assert found(records) == []


async def test_the_old_and_the_many_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    records = RecentRequests(tmp_path, contents=False, clock=clock)
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    for rid in "abc":
        await finish(records, request(rid))
    assert [record["rid"] for record in found(records)] == ["b", "c"]
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    await finish(records, request("d"))
    assert found(records) == []
    monkeypatch.undo()
    await finish(records, request("e"))
    clock.now += module.WINDOW_S + 1
    assert found(records) == []


async def test_the_file_is_for_its_owner(tmp_path: Path) -> None:
    records = RecentRequests(tmp_path / "new", contents=False)
    await finish(records, request("a"))
    await records.write(records.lines("it broke"))
    [path] = (tmp_path / "new").rglob("crash_dump_*.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes().splitlines()) == 2


async def test_a_dump_that_is_not_whole_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[str]] = []

    def full(part: Path, _whole: Path) -> None:
        seen.append([path.name for path in part.parent.iterdir()])
        raise OSError(errno.ENOSPC, "No space left on device")

    records = RecentRequests(tmp_path, contents=False)
    monkeypatch.setattr(Path, "replace", full)
    await records.write(records.lines("it broke"))
    assert "No space left on device" in caplog.text
    [[name]] = seen
    assert name.startswith(".crash_dump_") and name.endswith(".part")
    assert not list(records._folder.iterdir())


async def test_a_disk_that_takes_nothing_is_no_further_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = RecentRequests(tmp_path, contents=False)
    records._folder.rmdir()
    await records.write(records.lines("it broke"))
    assert "The crash dump could not be written" in caplog.text


def test_as_the_options_say(tmp_path: Path) -> None:
    assert isinstance(crash_records(ObservabilityArgs()), NoCrashRecords)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--crash-dump-folder .*file"):
        crash_records(ObservabilityArgs(crash_dump_folder=str(tmp_path / "file")))
