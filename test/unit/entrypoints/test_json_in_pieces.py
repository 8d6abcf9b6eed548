"""A text read in pieces is what orjson makes of the whole, and is refused where orjson refuses the whole."""

import json
import random
from typing import Any

import orjson
import pytest

from mysglang.srt.entrypoints import json_in_pieces, json_layout
from mysglang.srt.entrypoints.json_in_pieces import JsonFault, PieceReader
from mysglang.srt.entrypoints.json_layout import JsonLimits, lay_out
from mysglang.srt.errors import InvalidRequest

pytestmark = pytest.mark.promise(42)

SCALARS = [
    *(1, -5, 2.5, True, False, None, "", 'a"b', "\\", '\\\\"', "é", "\u4f60", "\U0001f600"),
    *("x" * 29, "[{,}]", 10**12, 0),
]
NAMES = ["a", 'b"', "c\\", "k" * 9, "é,", "type"]
PUT_IN = [*(b"%c" % sign for sign in b',[]{}"\\ 1:\n\xff'), b""]
TEXTS = 400


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is long."""
    monkeypatch.setattr(json_layout, "CHUNK", 7)
    monkeypatch.setattr(json_in_pieces, "PIECE", 12)
    monkeypatch.setattr(json_in_pieces, "MANY_NUMBERS", 2)


def read(text: bytes) -> Any:
    body = memoryview(text)
    return PieceReader(body, lay_out(body, JsonLimits(depth=64), lambda: None), lambda: None).read()


def drawn(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth > 4 or kind < 0.35:
        return draw.choice(SCALARS)
    if kind < 0.7:
        return [drawn(draw, depth + 1) for _ in range(draw.randrange(6))]
    return {draw.choice(NAMES): drawn(draw, depth + 1) for _ in range(draw.randrange(6))}


def test_any_text_is_read_or_refused_as_a_whole_would_be() -> None:
    draw = random.Random(42)
    read_well = refused = 0
    for number in range(TEXTS):
        text = json.dumps(drawn(draw), ensure_ascii=number % 2 == 0, indent=draw.choice([None, None, 1])).encode()
        for change in range(3):
            if change:
                place = draw.randrange(len(text) + 1)
                text = text[:place] + draw.choice(PUT_IN) + text[place + draw.randrange(2) :]
            try:
                whole = orjson.loads(text)
            except orjson.JSONDecodeError:
                with pytest.raises((JsonFault, InvalidRequest)):
                    read(text)
                refused += 1
                continue
            # By text, since True is 1 to Python.
            assert json.dumps(read(text)) == json.dumps(whole), text
            read_well += 1
    assert read_well > TEXTS < refused


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, 22222222222222, ]}',
        b'{"a": [1, , 22222222222222]}',
        b'{"a": 1, "b": 222222222222222, }',
        b"[1111111111111][11111111111111, 222222222222]",
        b'{"a": [1111111111111}, {111111111111111, 2]}',
    ],
)
def test_nothing_between_two_commas_is_a_fault(text: bytes) -> None:
    with pytest.raises(JsonFault):
        read(text)


def test_an_empty_list_may_be_full_of_space() -> None:
    assert read(b'{"a": [' + b" " * 100 + b'], "b": {' + b"\n" * 100 + b"}}" + b" " * 100) == {"a": [], "b": {}}


def test_of_two_members_with_one_name_the_last_one_counts() -> None:
    text = b'{"a": "xxxxxxxxxxxxxxxxx", "b": 2, "a": "yyyyyyyyyyyyyyyyyyyyy"}'
    assert list(read(text).items()) == list(orjson.loads(text).items())


def test_equal_numbers_are_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_in_pieces, "PIECE", 40)
    items = read(b"[" + b",".join([b"123456"] * 50) + b"]")
    assert len(set(map(id, items))) == 1


def test_no_piece_is_longer_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    loads = orjson.loads

    def counted(text: bytes | memoryview) -> Any:
        pieces.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", counted)
    value = {"a": [list(range(10))] * 30, "b": {"c": [{"d": 1}] * 30}}
    assert read(json.dumps(value).encode()) == value
    assert max(pieces) <= json_in_pieces.PIECE + 2 and len(pieces) > 60
