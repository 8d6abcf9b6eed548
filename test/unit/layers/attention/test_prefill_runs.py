"""Runs cover the rows in order, and only rows that have nothing in the cache attend over their own keys."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.layers.attention.prefill_runs import WORTH_A_RUN, Run, own_from_token, runs_of

BIG = WORTH_A_RUN


def runs(*rows: tuple[int, int]) -> list[tuple[int, int, bool]]:
    """(first row, row after the last, own) of rows given as (new tokens, tokens in the cache before)."""
    lens, before = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    return [(run.rows.start, run.rows.stop, run.own) for run in runs_of(lens, lens + before)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(3, 0)], [(0, 1, True)]),
        ([(3, 0), (1, 0)], [(0, 2, True)]),
        ([(3, 1)], [(0, 1, False)]),
        ([(3, 1), (BIG, 0)], [(0, 1, False), (1, 2, True)]),
        ([(BIG, 0), (3, 1), (1, 9)], [(0, 1, True), (1, 3, False)]),
        ([(1, 5), (BIG // 2, 0), (BIG // 2, 0), (1, 7)], [(0, 1, False), (1, 3, True), (3, 4, False)]),
        ([(1, 5), (BIG - 1, 0), (1, 7)], [(0, 3, False)]),
        ([(BIG - 1, 0), (1, 7), (BIG, 0)], [(0, 2, False), (2, 3, True)]),
    ],
)
def test_by_hand(rows: list[tuple[int, int]], expected: list[tuple[int, int, bool]]) -> None:
    assert runs(*rows) == expected


@given(st.lists(st.tuples(st.integers(1, 2 * BIG), st.sampled_from([0, 0, 1, 700])), min_size=1, max_size=12))
def test_any_rows(rows: list[tuple[int, int]]) -> None:
    lens, before = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    found = runs_of(lens, lens + before)
    ends = np.concatenate(([0], np.cumsum(lens)))
    assert [run.rows.start for run in found] == [0, *(run.rows.stop for run in found[:-1])]
    assert found[-1].rows.stop == len(rows)
    for run in found:
        assert run.tokens == slice(int(ends[run.rows.start]), int(ends[run.rows.stop]))
        assert not run.own or not before[run.rows].any()
    assert all(a.own or b.own for a, b in pairwise(found))
    assert isinstance(found[0], Run)


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
