"""/v1/batches through OpenAI's client: every line is accounted for once, whatever ends the batch or the server."""

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from fixtures.batch_desk import desk_in, edit_record, line, put_record, records, remove_record, table_of
from fixtures.patience import until
from fixtures.scripted_engine import Step, Stop, endless, hello, silent
from mysglang.srt.entrypoints.openai import batches_journal, batches_run, batches_service
from mysglang.srt.entrypoints.openai.batches_room import Room
from mysglang.srt.errors import ConfigError, Overloaded, WorkerDied
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.utils.disk import append_whole


def counts(batch: Batch) -> tuple[int, int, int]:
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


async def test_every_line_is_answered(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        batch = await desk.begin(*(line(f"n{i}") for i in range(20)), "", metadata={"who": "me"})
        assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", "/v1/chat/completions")
        assert batch.expires_at == batch.created_at + 24 * 3600
        assert batch.metadata == {"who": "me"}
        batch = await desk.end_of(batch)
        assert (batch.status, batch.error_file_id, counts(batch)) == ("completed", None, (20, 20, 0))
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
        entries = await desk.entries(batch.output_file_id)
        assert set(entries) == {f"n{i}" for i in range(20)}
        for entry in entries.values():
            assert entry["error"] is None
            assert entry["response"]["status_code"] == 200
            assert entry["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
        assert batch.usage is not None
        assert batch.usage.output_tokens == 20 * 4
        output = await desk.api.files.retrieve(batch.output_file_id or "")
        assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
        assert [known.id async for known in await desk.api.batches.list(limit=1)] == [batch.id]
        with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
            await desk.api.batches.cancel(batch.id)
    assert not list((tmp_path / "batches").glob("*.jsonl"))


async def test_completions(tmp_path: Path) -> None:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": ["x", "y"]}}
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(request, endpoint="/v1/completions"))
        entries = await desk.entries(batch.output_file_id)
    assert [choice["text"] for choice in entries["a"]["response"]["body"]["choices"]] == ["Hello world"] * 2


async def test_a_wrong_line_is_told_with_its_number(tmp_path: Path) -> None:
    wrong = [line("b", stream=True), line("c", top_p=5), line("d", n=-1)]
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(line("a"), *wrong))
        assert (batch.status, counts(batch)) == ("completed", (4, 1, 3))
        errors = await desk.entries(batch.error_file_id)
        assert set(await desk.entries(batch.output_file_id)) == {"a"}
    told = {name: (entry["line"], entry["response"]["status_code"]) for name, entry in errors.items()}
    assert told == {"b": (2, 400), "c": (3, 400), "d": (4, 400)}
    error = errors["c"]["response"]["body"]["error"]
    assert error["param"] == "top_p"
    assert error["request_id"] == errors["c"]["response"]["request_id"]


async def test_an_input_that_is_none_fails(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(line("a"), "{", line("a")))
        assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
        assert batch.failed_at
        assert batch.errors is not None and batch.errors.data is not None
        assert [(error.line, error.code) for error in batch.errors.data] == [
            (2, "invalid_json_line"),
            (3, "duplicate_custom_id"),
        ]
        assert not desk.served.engine.requests


async def test_bodies_that_are_refused(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        file_id = await desk.upload(line("a"))
        picture = await desk.upload(line("a"), purpose="vision")
        right: dict[str, Any] = {
            "input_file_id": file_id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        wrong: list[tuple[dict[str, Any], int, str]] = [
            ({"input_file_id": "file-x"}, 404, "file-x"),
            ({"input_file_id": picture}, 400, "purpose"),
            ({"endpoint": "/v1/images"}, 400, "/v1/chat/completions"),
            ({"completion_window": "1h"}, 400, "completion_window"),
            ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
            ({"metadata": {str(i): "v" for i in range(17)}}, 400, "metadata"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after"),
            ({"input_file_id": 1}, 400, "input_file_id"),
        ]
        for change, status, word in wrong:
            answer = await desk.served.post("/v1/batches", {**right, **change})
            assert (answer.status_code, word in answer.json()["error"]["message"]) == (status, True), change
        missing = await desk.served.post("/v1/batches", {**right, "input_file_id": "file-x"})
        assert missing.json()["error"]["param"] == "input_file_id"
        assert not [batch async for batch in await desk.api.batches.list()]


async def test_cancelled_in_the_midst(tmp_path: Path) -> None:
    asked = 0

    def two_then_none(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        nonlocal asked
        asked += 1
        return hello(request) if asked <= 2 else endless(request)

    async with desk_in(tmp_path, two_then_none, max_in_flight=3) as desk:
        batch = await desk.begin(*(line(f"n{i}") for i in range(10)))
        await until(lambda: asked >= 5)
        assert (await desk.api.batches.retrieve(batch.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="not complete"):
            await desk.api.files.delete(batch.input_file_id)
        assert (await desk.api.batches.cancel(batch.id)).status == "cancelling"
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("cancelled", (10, 2, 8))
        assert batch.cancelling_at and batch.cancelled_at
        assert len(await desk.entries(batch.output_file_id)) == 2
        errors = await desk.entries(batch.error_file_id)
        assert {entry["error"]["code"] for entry in errors.values()} == {"batch_cancelled"}
        assert desk.served.front.tokenizer_manager.open_requests == 0
        await desk.api.files.delete(batch.input_file_id)


@pytest.mark.promise(50)
async def test_a_restart_asks_only_what_was_not_answered(tmp_path: Path) -> None:
    asked = 0

    def three_then_none(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        nonlocal asked
        asked += 1
        return hello(request) if asked <= 3 else endless(request)

    async with desk_in(tmp_path, three_then_none, max_in_flight=2) as desk:
        batch = await desk.begin(*(line(f"n{i}") for i in range(8)))
        await until(lambda: asked >= 5)
    (journal,) = (tmp_path / "batches").glob("*.output.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"id":"half written')
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("completed", (8, 8, 0))
        assert len(desk.served.engine.requests) == 5
        assert set(await desk.entries(batch.output_file_id)) == {f"n{i}" for i in range(8)}
        assert batch.usage is not None and batch.usage.output_tokens == 8 * 4


@pytest.mark.promise(50)
async def test_a_crash_while_files_are_handed_out(tmp_path: Path) -> None:
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(line("a"), line("b", n=-1)))
    output, errors = (tmp_path / "files" / f"{file_id}.bin" for file_id in (batch.output_file_id, batch.error_file_id))
    # As if it had come between the bytes and the record of the first file.
    edit_record(tmp_path, batch.id, status="finalizing", completed_at=None)
    for path in (output, errors):
        remove_record(tmp_path, path.stem)
    errors.rename(tmp_path / "batches" / f"{batch.id}.error.jsonl")
    async with desk_in(tmp_path) as desk:
        again = await desk.end_of(batch)
        assert again.model_copy(update={"completed_at": 0}) == batch.model_copy(update={"completed_at": 0})
        assert set(await desk.entries(again.output_file_id)) == {"a"}
        assert set(await desk.entries(again.error_file_id)) == {"b"}
        assert not desk.served.engine.requests


async def interrupted(folder: Path, lines: int = 6, answered: int = 3) -> Batch:
    """A batch of which that many lines were answered when the server ended."""
    asked = 0

    def some_then_none(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        nonlocal asked
        asked += 1
        return hello(request) if asked <= answered else endless(request)

    async with desk_in(folder, some_then_none, max_in_flight=1) as desk:
        batch = await desk.begin(*(line(f"n{i}") for i in range(lines)))
        await until(lambda: asked > answered)
    return batch


@pytest.mark.promise(50)
async def test_a_torn_journal_costs_only_what_is_torn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch = await interrupted(tmp_path)
    (journal,) = (tmp_path / "batches").glob("*.output.jsonl")
    first, second, third = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + b"\0" * len(second) + third + third + first[:100])
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("completed", (6, 6, 0))
        # The three that were open, and the one that was lost.
        assert len(desk.served.engine.requests) == 4
        assert set(await desk.entries(batch.output_file_id)) == {f"n{i}" for i in range(6)}
    assert caplog.text.count("is damaged") == 1


@pytest.mark.promise(50)
@pytest.mark.parametrize("damage", ["zeros", "gone", "doubled"])
async def test_a_journal_that_is_torn_when_all_is_answered(tmp_path: Path, damage: str) -> None:
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(*(line(name) for name in "abc")))
    edit_record(tmp_path, batch.id, status="finalizing", completed_at=None)
    output = tmp_path / "files" / f"{batch.output_file_id}.bin"
    remove_record(tmp_path, output.stem)
    journal = output.rename(tmp_path / "batches" / f"{batch.id}.output.jsonl")
    data = journal.read_bytes()
    match damage:
        case "zeros":
            journal.write_bytes(data[:10] + b"\0" * 20 + data[30:])
        case "gone":
            journal.unlink()
        case "doubled":
            journal.write_bytes(data + data)
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("completed", (3, 3, 0))
        assert len(desk.served.engine.requests) == {"zeros": 1, "gone": 3, "doubled": 0}[damage]
        assert set(await desk.entries(batch.output_file_id)) == set("abc")


@pytest.mark.promise(50)
async def test_an_input_that_is_torn_later_costs_no_answers(tmp_path: Path) -> None:
    batch = await interrupted(tmp_path)
    content = tmp_path / "files" / f"{batch.input_file_id}.bin"
    content.write_bytes(b"\0" * content.stat().st_size)
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("failed", (6, 3, 0))
        assert batch.errors and batch.errors.data and batch.errors.data[0].code == "invalid_json_line"
        assert len(await desk.entries(batch.output_file_id)) == 3
        assert not desk.served.engine.requests


TORN = [
    b"",
    b"\0" * 300,
    b'{"id":"\xff\xfe"}',
    b'{"id":"batch_other","status":"completed"}',
    b"[" * 5000,
    b"\0" * (2 << 20),
]


@pytest.mark.promise(50)
@pytest.mark.parametrize("data", TORN, ids=range(len(TORN)))
async def test_torn_records_keep_no_server_from_starting(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk_in(tmp_path) as desk:
        kept = await desk.end_of(await desk.begin(line("a")))
        lost = await desk.end_of(await desk.begin(line("b")))
    torn = [lost.id, lost.output_file_id or ""]
    for record_id in torn:
        put_record(tmp_path, record_id, data)
    async with desk_in(tmp_path) as desk:
        assert [batch.id async for batch in desk.api.batches.list()] == [kept.id]
        assert set(await desk.entries(kept.output_file_id)) == {"a"}
        assert lost.output_file_id not in [file.id async for file in await desk.api.files.list()]
    for record_id in torn:
        assert caplog.text.count(f"{record_id} cannot be read") == 1
        # What cannot be read may be mended by hand.
        assert records(tmp_path, table_of(record_id))[record_id] == data
    assert (tmp_path / "files" / f"{lost.output_file_id}.bin").exists()


@pytest.mark.promise(50)
async def test_a_file_that_is_cut_short_is_not_handed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with desk_in(tmp_path) as desk:
        file_id = await desk.upload(line("a"))
    content = tmp_path / "files" / f"{file_id}.bin"
    os.truncate(content, 5)
    async with desk_in(tmp_path) as desk:
        with pytest.raises(openai.NotFoundError):
            await desk.api.files.content(file_id)
    assert "has 5 bytes instead of" in caplog.text
    assert content.exists()


async def test_the_end_of_the_window(tmp_path: Path) -> None:
    async with desk_in(tmp_path, silent) as desk:
        batch = await desk.begin(line("a"), line("b"))
        await until(lambda: desk.served.engine.requests)
    edit_record(tmp_path, batch.id, expires_at=1)
    async with desk_in(tmp_path, silent) as desk:
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch), batch.output_file_id) == ("expired", (2, 0, 2), None)
        errors = await desk.entries(batch.error_file_id)
    assert {entry["error"]["code"] for entry in errors.values()} == {"batch_expired"}


async def test_the_engine_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with desk_in(tmp_path, silent) as desk:
        batch = await desk.begin(line("a"), line("b"))
        await until(lambda: len(desk.served.engine.requests) >= 2)
        desk.served.front.tokenizer_manager.fail_all(WorkerDied("gone"))
        await until(lambda: "after the next start" in caplog.text)
        assert (await desk.api.batches.retrieve(batch.id)).status == "in_progress"
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(batch)
    assert (batch.status, counts(batch)) == ("completed", (2, 2, 0))


async def test_a_full_queue_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk_in(tmp_path) as desk:
        manager, refusals = desk.served.front.tokenizer_manager, iter([True, True, False])
        generate = manager.generate_request

        def at_times_full(obj: Any) -> Any:
            if next(refusals):
                raise Overloaded("The request queue is full.")
            return generate(obj)

        monkeypatch.setattr(manager, "generate_request", at_times_full)
        batch = await desk.end_of(await desk.begin(line("a")))
    assert counts(batch) == (1, 1, 0)


async def test_a_full_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Existing answers are not asked again, and the batch can be completed once there is room."""

    def full(path: Path, data: bytes) -> None:
        if path.stat().st_size if path.exists() else 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        append_whole(path, data)

    monkeypatch.setattr(batches_service, "DISK_RETRY_S", 0.01)
    async with desk_in(tmp_path, max_in_flight=1) as desk:
        with monkeypatch.context() as filled:
            filled.setattr(batches_journal, "append_whole", full)
            batch = await desk.begin(*(line(name) for name in "abc"))
            await until(lambda: "No space left" in caplog.text)
            asked = len(desk.served.engine.requests)
            assert (await desk.api.batches.retrieve(batch.id)).status == "in_progress"
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("completed", (3, 3, 0))
        assert set(await desk.entries(batch.output_file_id)) == set("abc")
        assert asked >= 2


@pytest.mark.promise(46)
async def test_promise_46_a_shortage_of_files_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is answered with it, and neither is the batch broken off."""
    monkeypatch.setattr(batches_service, "DISK_RETRY_S", 0.01)
    monkeypatch.setattr(batches_run, "RETRY_S", 0.01)
    refusals = {"read_input": 2, "read_request": 2}

    def scarce(name: str, error: Exception) -> None:
        work = getattr(batches_run, name)

        def refuse(*args: Any) -> Any:
            if refusals[name]:
                refusals[name] -= 1
                raise error
            return work(*args)

        monkeypatch.setattr(batches_run, name, refuse)

    scarce("read_input", RuntimeError("can't start new thread"))
    scarce("read_request", OSError(errno.EMFILE, "Too many open files"))
    async with desk_in(tmp_path) as desk:
        batch = await desk.end_of(await desk.begin(*(line(name) for name in "abc")))
        assert (batch.status, counts(batch)) == ("completed", (3, 3, 0))
    assert refusals == {"read_input": 0, "read_request": 0}


async def test_no_room_for_an_upload_or_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with desk_in(tmp_path) as desk:
        file_id = await desk.upload(line("a"))
        batch = await desk.begin(line("a"))
        batch = await desk.end_of(batch)
        kept = sorted(tmp_path.rglob("*.*"))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(openai.InternalServerError, match="no room for this file") as refused:
            await desk.upload(line("a"))
        assert refused.value.status_code == 507
        assert sorted(tmp_path.rglob("*.*")) == kept
        monkeypatch.undo()
        assert await desk.upload(line("a")) != file_id
    assert batch.id in records(tmp_path, "batches")


async def test_a_bug_of_ours_is_one_lines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(obj: Any) -> Any:
        if "worse" in obj.text:
            raise ZeroDivisionError("inside")
        return generate(obj)

    async with desk_in(tmp_path) as desk:
        manager = desk.served.front.tokenizer_manager
        generate = manager.generate_request
        monkeypatch.setattr(manager, "generate_request", broken)
        batch = await desk.end_of(await desk.begin(line("a"), line("b", "worse")))
        errors = await desk.entries(batch.error_file_id)
    assert counts(batch) == (2, 1, 1)
    assert errors["b"]["response"]["status_code"] == 500
    assert "inside" not in json.dumps(errors["b"])


async def test_another_model_waits(tmp_path: Path) -> None:
    async with desk_in(tmp_path, silent) as desk:
        batch = await desk.begin(line("a"))
        await until(lambda: desk.served.engine.requests)
    edit_record(tmp_path, batch.id, model="other")
    async with desk_in(tmp_path) as desk:
        assert (await desk.api.batches.retrieve(batch.id)).status == "in_progress"
        assert (await desk.api.batches.cancel(batch.id)).status == "cancelling"
        batch = await desk.end_of(batch)
        assert (batch.status, counts(batch)) == ("cancelled", (1, 0, 1))
        assert not desk.served.engine.requests


async def test_open_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_service, "MAX_OPEN", 1)
    async with desk_in(tmp_path, silent) as desk:
        await desk.begin(line("a"))
        with pytest.raises(openai.RateLimitError):
            await desk.begin(line("a"))


async def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async with desk_in(tmp_path):
        with pytest.raises(ConfigError, match="another server"):
            async with desk_in(tmp_path):
                pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file-storage-path"):
        async with desk_in(tmp_path / "file"):
            pass


@pytest.mark.promise(44)
async def test_batches_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short batch does not wait for the end of a long one that came before."""
    answer = Step("Hi", [2], Stop(2))
    lengths: list[int] = []
    lines_that_asked: list[Room] = []
    enter = Room.enter

    async def noted(room: Room, key: str) -> None:
        lines_that_asked.append(room)
        await enter(room, key)

    monkeypatch.setattr(Room, "enter", noted)

    def held_at_first(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        lengths.append(len(request.input_ids))
        return [] if len(lengths) == 1 else [answer]

    async with desk_in(tmp_path, held_at_first, max_in_flight=1) as desk:
        long = await desk.begin(*(line(f"n{i}") for i in range(20)))
        await until(lambda: desk.served.engine.requests)
        short = await desk.begin(line("a", "Longer than theirs"))
        await until(lambda: len(lines_that_asked) >= 3)
        desk.served.engine.say_step(desk.served.engine.requests[0], answer, 1)
        assert counts(await desk.end_of(short)) == (1, 1, 0)
        assert counts(await desk.end_of(long)) == (20, 20, 0)
    assert lengths.index(max(lengths)) == 2
