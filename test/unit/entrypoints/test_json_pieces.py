"""JSON written in pieces is JSON written at once, and no piece is long."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.entrypoints import json_pieces
from mysglang.srt.entrypoints.json_pieces import PIECE, in_pieces

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=60,
)

TRIPLE = (-1.25, 7, None)
LONG: dict[str, Any] = {
    "columns": {"output": [[TRIPLE] * 1000] * 30, "input": [None, *[[TRIPLE] * 1000] * 30]},
    "row": {"one": [[TRIPLE] * 20_000]},
    "tokens": [{"token": "a", "bytes": [97], "top": [{"token": "b", "bytes": [98]}] * 20}] * 500,
    "states": {"hidden": [[[0.5] * 64] * 300, *[[0.5] * 64] * 30]},
    "text": "x" * 10,
    "nothing": [[]] * 9000,
}


@given(VALUES, st.integers(1, 8))
def test_the_same_as_at_once(data: object, piece: int) -> None:
    whole = orjson.dumps(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE", piece)
        assert in_pieces(data) == whole


@pytest.mark.parametrize("name", LONG)
def test_of_what_is_long_each_piece_is_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, whole, sizes = LONG[name], orjson.dumps(LONG[name]), list[int]()

    class Noting:
        @staticmethod
        def dumps(value: object) -> bytes:
            written = orjson.dumps(value)
            sizes.append(written.count(b",") + 1)
            return written

    monkeypatch.setattr(json_pieces, "orjson", Noting)
    assert in_pieces(data) == whole
    assert max(sizes) <= 2 * PIECE
