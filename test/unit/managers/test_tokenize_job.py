"""Lists of ids -> bytes, beside numpy's own conversion."""

import random

import numpy as np
import pytest

from mysglang.srt.managers.tokenize_job import packed_ids, packed_prompts
from mysglang.srt.utils.tokenizer import IDS_PIECE


@pytest.mark.parametrize("length", [0, 1, IDS_PIECE, IDS_PIECE + 1, 3 * IDS_PIECE + 7])
def test_ids_of_any_number(length: int) -> None:
    ids = [random.Random(length).randrange(1 << 31) for _ in range(length)]
    assert packed_ids(ids) == np.array(ids, dtype=np.int32).tobytes()


def test_prompts_keep_their_order_and_lengths() -> None:
    rows = [[5], [], [0, 1, 599], [7] * 3000]
    assert packed_prompts(rows, 599) == [np.array(row, dtype=np.int32).tobytes() for row in rows]


@pytest.mark.parametrize("wrong", [600, -1, True, False, 1.0, "a", None, [1], 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_anything_else_anywhere_is_found(wrong: object, row: int) -> None:
    rows: list[list[object]] = [[1, 2], [0], [599] * 4000]
    rows[row].insert(len(rows[row]) // 2, wrong)
    assert packed_prompts(rows, 599) is None  # type: ignore[arg-type]
