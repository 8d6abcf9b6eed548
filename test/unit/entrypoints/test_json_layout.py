"""Long JSON texts are counted, strings and escapes told from structure, wherever the chunks end."""

import re
from dataclasses import replace

import pytest

from mysglang.srt.entrypoints import json_layout
from mysglang.srt.entrypoints.json_layout import JsonLimits, lay_out
from mysglang.srt.errors import InvalidRequest

pytestmark = pytest.mark.promise(42)

LIMITS = JsonLimits(depth=4, values=100, containers=20, strings=20, text_bytes=64)


def nothing() -> None:
    pass


@pytest.fixture(autouse=True, params=[3, 7, 1 << 18])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_layout, "CHUNK", request.param)


@pytest.mark.parametrize(
    ("text", "commas"),
    [
        (b'{"a": [1, 2], "b": 3}', [12]),
        (b'{"a,b": "x,\\",y", "c\\\\": ","}', [16]),
        (b'{"\\\\\\"": ",", "b": 1}', [12]),
        (b'{"a": "\\\\", "b": ["\\"", ","], "c": 1}', [10, 28]),
        (b'{"a": {"b": 1, "c": 2}}', []),
    ],
)
def test_only_what_separates_members_is_found(text: bytes, commas: list[int]) -> None:
    found = lay_out(memoryview(text), LIMITS, nothing).commas(0, len(text), 1)
    assert found.tolist() == commas
    assert all(text[place : place + 1] == b"," for place in commas)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"[" * 5 + b"]" * 5, "deeper than 4 levels"),
        (b"[" + b"1," * 101, "more than 100 values"),
        (b"[" + b"{}," * 20 + b"1]", "more than 20 lists and objects"),
        (b"{" + b'"a":1,' * 21, "more than 20 strings"),
    ],
)
def test_too_much_of_anything_is_refused(text: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(what)):
        lay_out(memoryview(text), LIMITS, nothing)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4 + "]" * 4,
        "[" + "[]," * 19 + "1]",
        '["' + "[" * 60 + '"]',
    ],
)
def test_what_is_within_the_limits_is_taken(text: str) -> None:
    lay_out(memoryview(text.encode()), LIMITS, nothing)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("x" * 1000, 1000),
        ("é" * 1000, 1000),
        ("x" * 999 + "\u4f60", 2000),
        ("\u4f60" * 1000, 2000),
        ("x" * 999 + "\U0001f600", 4000),
        ("\U0001f600" + "x" * 999, 4000),
    ],
)
def test_a_long_text_is_as_heavy_as_python_makes_it(text: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_layout, "CHUNK", 64)
    for body in (f'["{text}", "y"]', f'["\u4f60", "{text}"]'):
        data = memoryview(body.encode())
        lay_out(data, replace(LIMITS, text_bytes=memory), nothing)
        with pytest.raises(InvalidRequest, match=f"takes more than {memory - 100} bytes in memory"):
            lay_out(data, replace(LIMITS, text_bytes=memory - 100), nothing)


@pytest.mark.parametrize(("code", "width"), [("\\u00e9", 2), ("\\ud83d\\ude00", 4)])
def test_coded_characters_count_as_what_they_mean(code: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_layout, "CHUNK", 1024)
    body = memoryview(f'["{code * 1000}"]'.encode())
    most = 1000 * len(code) // 6 * width
    lay_out(body, replace(LIMITS, text_bytes=most + most // 10), nothing)
    with pytest.raises(InvalidRequest, match="in memory"):
        lay_out(body, replace(LIMITS, text_bytes=most - most // 10), nothing)


def test_counting_ends_where_it_is_told_to() -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        lay_out(memoryview(b"[1]"), LIMITS, stop)
