"""The input of a batch: every kind of fault has its code and its line, and what is right is found again in the file."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fixtures.batch_desk import CHAT, jsonl, line
from mysglang.srt.entrypoints.ignored_fields import FieldLog
from mysglang.srt.entrypoints.openai import batches_input
from mysglang.srt.entrypoints.openai.batches_input import InputRefused, name_of, read_input, read_request


def written(folder: Path, *lines: object) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(jsonl(lines))
    return path


def test_lines_are_found_again(tmp_path: Path) -> None:
    path = written(tmp_path, "", line("a", "é"), "  ", line("b", "x" * 5000), line("c"))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    lines = read_input(path, CHAT)
    assert [(item.number, item.name) for item in lines] == [(2, name_of("a")), (4, name_of("b")), (5, name_of("c"))]
    assert [read_request(path, item) for item in lines] == [
        ("a", line("a", "é")["body"]),
        ("b", line("b", "x" * 5000)["body"]),
        ("c", line("c")["body"]),
    ]


@pytest.mark.promise(50)
def test_a_line_that_has_changed_is_not_asked(tmp_path: Path) -> None:
    path = written(tmp_path, line("a"), line("b"))
    lines = read_input(path, CHAT)
    text = path.read_bytes()
    for torn in (b"\0" * len(text), text[: len(text) // 2], text.replace(b'"b"', b'"c"'), b"[1]" * 200):
        path.write_bytes(torn)
        with pytest.raises(InputRefused) as refused:
            read_request(path, lines[1])
        assert refused.value.faults[0].line == 2


@pytest.mark.promise(44)
def test_many_long_names_take_little_memory(tmp_path: Path) -> None:
    """Open batches of one client must not fill the memory of all."""
    path = written(tmp_path, *(line(f"{number:0512}") for number in range(5000)))
    tracemalloc.start()
    lines = read_input(path, CHAT)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(lines) == 5000
    assert kept < 5000 * 60


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ('{"a": NaN}', "invalid_json_line", None),
        ("[" * 80 + "]" * 80, "invalid_json_line", None),
        ('{"a": ' + "[" * 80 + "]" * 80 + "}", "invalid_json_line", None),
        ({**line("a"), "custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "a", "method": "POST", "url": CHAT}, "missing_required_parameter", "body"),
        ({**line("a"), "custom_id": 1}, "invalid_custom_id", "custom_id"),
        ({**line("a"), "custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({**line("a"), "method": "GET"}, "invalid_method", "method"),
        ({**line("a"), "url": "/v1/completions"}, "mismatched_url", "url"),
        ({**line("a"), "body": "x"}, "invalid_body", "body"),
        ({**line("a"), "more": 1}, "unknown_parameter", "more"),
        (line("first"), "duplicate_custom_id", "custom_id"),
    ],
)
def test_faults(tmp_path: Path, wrong: Any, code: str, param: str | None) -> None:
    with pytest.raises(InputRefused) as refused:
        read_input(written(tmp_path, line("first"), wrong, line("last")), CHAT)
    (fault,) = refused.value.faults
    assert (fault.code, fault.param, fault.line) == (code, param, 2)
    assert fault.message.endswith(".")


@pytest.mark.promise(31)
def test_promise_31_unknown_fields_beside_a_body_are_reported(tmp_path: Path) -> None:
    log = FieldLog()
    report = log.report("a batch")
    path = written(tmp_path, {**line("a"), "more": 1, "note": "mine"}, line("b"))
    assert len(read_input(path, CHAT, report)) == 2
    assert report.names == ["more", "note"]
    with pytest.raises(InputRefused, match="1 faults"):
        read_input(path, CHAT, FieldLog("error").report("a batch"))


def test_nothing_is_no_input(tmp_path: Path) -> None:
    with pytest.raises(InputRefused) as refused:
        read_input(written(tmp_path, "", ""), CHAT)
    assert [(fault.code, fault.line) for fault in refused.value.faults] == [("empty_file", None)]


def test_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_input, "MAX_LINES", 3)
    lines = [line(f"n{i}") for i in range(4)]
    assert len(read_input(written(tmp_path, *lines[:3]), CHAT)) == 3
    with pytest.raises(InputRefused) as refused:
        read_input(written(tmp_path, *lines), CHAT)
    assert [fault.code for fault in refused.value.faults] == ["too_many_requests"]


def test_faults_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(InputRefused) as refused:
        read_input(written(tmp_path, *["{"] * 200), CHAT)
    assert [fault.line for fault in refused.value.faults] == [*range(1, batches_input.MAX_FAULTS + 1)]


def test_a_long_line_does_not_hide_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_input, "MAX_BODY_BYTES", 400)
    path = written(tmp_path, line("a"), line("b", "x" * 2000), line("c", "y" * 1000), "{")
    with pytest.raises(InputRefused) as refused:
        read_input(path, CHAT)
    assert [(fault.line, fault.code) for fault in refused.value.faults] == [
        (2, "line_too_long"),
        (3, "line_too_long"),
        (4, "invalid_json_line"),
    ]
