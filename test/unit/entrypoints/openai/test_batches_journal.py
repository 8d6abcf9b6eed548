"""A journal survives torn writes: whatever was cut short, zeroed, doubled or copied into it, whole lines are kept."""

from __future__ import annotations

import logging
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mysglang.srt.entrypoints.openai.batches_input import name_of
from mysglang.srt.entrypoints.openai.batches_journal import Journal

NAMES = [f"n{number}" for number in range(12)]


def entry(name: str, text: str = "Hello") -> dict[str, Any]:
    body = {"usage": {"prompt_tokens": 2, "completion_tokens": 3}, "text": text}
    return {"custom_id": name, "response": {"status_code": 200, "body": body}, "error": None}


def opened(folder: Path, batch: str = "batch_1") -> Journal:
    return Journal(batch, folder / f"{batch}.output.jsonl", folder / f"{batch}.error.jsonl")


def written(folder: Path, batch: str = "batch_1", text: str = "Hello") -> Journal:
    journal = opened(folder, batch)
    for number, name in enumerate(NAMES):
        journal.add(entry(name, text), good=number % 3 != 0)
    return journal


def test_a_sound_journal_is_read_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = written(tmp_path)
    again = opened(tmp_path)
    assert again.answered == set(map(name_of, NAMES))
    assert again.tally == first.tally
    assert (again.tally.completed, again.tally.failed, again.tally.output_tokens) == (8, 4, 24)
    assert not caplog.records


def test_a_client_may_divide_a_file_into_lines_as_unicode_does(tmp_path: Path) -> None:
    journal = written(tmp_path, text="a\u2028b\u2029c\x85d")
    assert len(journal.output.read_text(encoding="utf-8").splitlines()) == journal.tally.completed


DAMAGE = st.tuples(
    st.sampled_from(["cut", "zero", "double", "move", "foreign", "garbage", "flip"]),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 900),
)


def damaged(data: bytes, foreign: bytes, how: str, where: float, source: float, length: int) -> bytes:
    at, start = int(where * len(data)), int(source * len(data))
    match how:
        case "cut":
            return data[:at]
        case "zero":
            return data[:at] + b"\0" * len(data[at : at + length]) + data[at + length :]
        case "double":
            return data[:at] + data[start : start + length] + data[at:]
        case "move":
            return data[:at] + data[start : start + length] + data[at + length :]
        case "foreign":
            return data[:at] + foreign[:length] + data[at:]
        case "garbage":
            return data[:at] + os.urandom(length) + data[at + length :]
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else data


@pytest.mark.promise(50)
@settings(max_examples=60)
@given(st.lists(DAMAGE, min_size=1, max_size=4), st.booleans())
def test_every_whole_line_is_kept_and_nothing_else(damages: list[Any], long: bool) -> None:
    text = "so it goes. " * (200 if long else 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, text=text)
        path = folder / "batch_1.output.jsonl"
        known = path.read_bytes().splitlines(keepends=True)
        # The same lines of another batch are none of this one's.
        written(folder, "batch_2", text)
        data, foreign = b"".join(known), (folder / "batch_2.output.jsonl").read_bytes()
        for how, where, source, length in damages:
            data = damaged(data, foreign, how, where, source, length)
        path.write_bytes(data)
        there = [line for line in dict.fromkeys(line + b"\n" for line in data.split(b"\n")[:-1]) if line in known]
        journal = opened(folder)
        errors = {name for number, name in enumerate(NAMES) if number % 3 == 0}
        assert path.read_bytes() == b"".join(there)
        assert journal.tally.completed == len(there)
        assert len(journal.answered) == len(there) + len(errors)
        # What is open is run once more, and then all is there once.
        for name in NAMES:
            if name_of(name) not in journal.answered:
                journal.add(entry(name, text), good=True)
        again = opened(folder)
        assert again.answered == set(map(name_of, NAMES)) and again.tally.completed == 8
        assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(known)
        assert sorted(path.name for path in folder.iterdir()) == [
            f"batch_{number}.{kind}.jsonl" for number in (1, 2) for kind in ("error", "output")
        ]


@pytest.mark.promise(50)
def test_damage_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    for kind in ("output", "error"):
        path = tmp_path / f"batch_1.{kind}.jsonl"
        path.write_bytes(path.read_bytes()[:50] + b"\0" * 4096 + path.read_bytes()[60:])
    with caplog.at_level(logging.WARNING):
        opened(tmp_path)
        opened(tmp_path)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["The journal of batch_1 is damaged"]


@pytest.mark.promise(50)
def test_a_hole_of_zeros_costs_no_memory(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "batch_1.output.jsonl"
    whole = path.read_bytes()
    os.truncate(path, 1 << 26)
    tracemalloc.start()
    journal = opened(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (journal.tally.completed, path.read_bytes()) == (8, whole)
    assert peak < 16 << 20


@pytest.mark.promise(50)
def test_every_byte_of_a_line_counts(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "batch_1.output.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for at in range(70):  # the digest, what is around it, and some of what it is of
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert opened(tmp_path).tally.completed == 7
        assert path.read_bytes() == whole[first:]
