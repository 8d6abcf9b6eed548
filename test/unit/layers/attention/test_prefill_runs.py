"""Runs cover the rows in order. Only rows that have nothing in the cache attend over their own keys, and only long
chunks of long prompts over copies.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.layers.attention.prefill_runs import (
    WORTH_A_RUN,
    WORTH_COPYING,
    Reads,
    own_from_token,
    runs_of,
)

BIG, FAR = WORTH_A_RUN, WORTH_COPYING
MOST = 4 * WORTH_COPYING
PAGES, OWN, COPIES = Reads.PAGES, Reads.OWN, Reads.COPIES


def runs(*rows: tuple[int, int]) -> list[tuple[int, int, Reads]]:
    """(first row, row after the last, where keys are read) of rows given as (new tokens, cached tokens)."""
    lens, before = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    return [(run.rows.start, run.rows.stop, run.reads) for run in runs_of(lens, lens + before, MOST)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(3, 0)], [(0, 1, OWN)]),
        ([(3, 0), (1, 0)], [(0, 2, OWN)]),
        ([(3, 1)], [(0, 1, PAGES)]),
        ([(3, 1), (BIG, 0)], [(0, 1, PAGES), (1, 2, OWN)]),
        ([(BIG, 0), (3, 1), (1, 9)], [(0, 1, OWN), (1, 3, PAGES)]),
        ([(1, 5), (BIG // 2, 0), (BIG // 2, 0), (1, 7)], [(0, 1, PAGES), (1, 3, OWN), (3, 4, PAGES)]),
        ([(1, 5), (BIG - 1, 0), (1, 7)], [(0, 3, PAGES)]),
        ([(BIG - 1, 0), (1, 7), (BIG, 0)], [(0, 2, PAGES), (2, 3, OWN)]),
        ([(BIG, FAR)], [(0, 1, COPIES)]),
        ([(BIG, FAR - BIG)], [(0, 1, COPIES)]),
        ([(BIG, FAR - BIG - 1)], [(0, 1, PAGES)]),
        ([(BIG - 1, FAR)], [(0, 1, PAGES)]),
        ([(BIG, MOST - BIG), (BIG, MOST - BIG + 1)], [(0, 1, COPIES), (1, 2, PAGES)]),
        ([(FAR, 0)], [(0, 1, OWN)]),
        ([(BIG, FAR), (BIG, FAR), (FAR, 0)], [(0, 1, COPIES), (1, 2, COPIES), (2, 3, OWN)]),
        ([(1, 5), (BIG, FAR), (1, 0), (9, 9)], [(0, 1, PAGES), (1, 2, COPIES), (2, 4, PAGES)]),
    ],
)
def test_by_hand(rows: list[tuple[int, int]], expected: list[tuple[int, int, Reads]]) -> None:
    assert runs(*rows) == expected


@given(
    st.lists(st.tuples(st.integers(1, 2 * BIG), st.sampled_from([0, 0, 1, 700, FAR, MOST])), min_size=1, max_size=12),
    st.sampled_from([0, MOST]),
)
def test_any_rows(rows: list[tuple[int, int]], most: int) -> None:
    lens, before = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    found = runs_of(lens, lens + before, most)
    ends = np.concatenate(([0], np.cumsum(lens)))
    assert [run.rows.start for run in found] == [0, *(run.rows.stop for run in found[:-1])]
    assert found[-1].rows.stop == len(rows)
    for run in found:
        assert run.tokens == slice(int(ends[run.rows.start]), int(ends[run.rows.stop]))
        assert run.reads is not OWN or not before[run.rows].any()
        keys = lens[run.rows] + before[run.rows]
        assert run.reads is not COPIES or (len(keys) == 1 and keys[0] <= most and lens[run.rows][0] >= BIG)
    assert all(a.reads is COPIES or a.reads is not b.reads for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(3, 0), (2, 0)], 0),
        ([(3, 0), (0, 0)], 0),
        ([(3, 7), (2, 0)], 5),
        ([(3, 7), (BIG, 0), (0, 0)], 3),
        ([(BIG, 0), (1, 4), (9, 0)], BIG + 10),
        ([(BIG, 0), (1, 4), (BIG, 0)], BIG + 1),
        ([(5, 1)], 5),
    ],
)
def test_where_own_keys_begin_in_a_captured_step(rows: list[tuple[int, int]], expected: int) -> None:
    lens, before = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    assert own_from_token(lens, lens + before) == expected
