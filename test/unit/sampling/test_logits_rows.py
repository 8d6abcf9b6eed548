"""LogitsRows against a list of (row, place) pairs, for rows of none, one and several logits."""

import numpy as np
import pytest

from mysglang.srt.sampling.logits_rows import LogitsRows

COUNTS = [[1, 1, 1], [0, 0], [1, 0, 1, 1, 0], [3, 0, 1, 2], [2], []]


@pytest.mark.parametrize("counts", COUNTS)
def test_every_logits_row_knows_its_row_and_its_length(counts: list[int]) -> None:
    seq_lens = np.arange(10, 10 + len(counts), dtype=np.int32) * 3
    pairs = [
        (row, int(seq_lens[row]) - behind) for row, count in enumerate(counts) for behind in reversed(range(count))
    ]
    logits = LogitsRows(np.array(counts, dtype=np.int64))
    assert list(zip(logits.rows.tolist(), logits.lengths(seq_lens).tolist(), strict=True)) == pairs


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("rows", [[0, 0, 1, 3], [1, 2, 2, 3], [0, 1, 2, 3], []])
def test_entries_stand_once_for_each_logits_row_of_their_row(counts: list[int], rows: list[int]) -> None:
    rows = [row for row in rows if row < len(counts)]
    first = np.cumsum([0, *counts]).tolist()
    pairs = [(entry, first[row] + place) for entry, row in enumerate(rows) for place in range(counts[row])]
    index, at = LogitsRows(np.array(counts, dtype=np.int64)).entries(np.array(rows, dtype=np.int64))
    assert list(zip(np.arange(len(rows))[index].tolist(), at.tolist(), strict=True)) == pairs


def test_rows_of_one_are_found() -> None:
    logits = LogitsRows.of(np.array([True, False, False, True, True]))
    assert logits.only(np.array([0, 3, 4], dtype=np.int32)).tolist() == [0, 1, 2]
