import numpy as np
import pytest

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.req_to_token import ReqToTokenPool, concatenated_ranges


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def test_the_table_has_a_column_for_every_page_of_the_context_and_a_row_for_padding() -> None:
    assert ReqToTokenPool(3, 100, 16).table.shape == (4, 7)
    assert ReqToTokenPool(3, 96, 16).table.shape == (4, 6)


def test_slots_come_and_go() -> None:
    rows = ReqToTokenPool(2, 8, 1)
    assert (rows.alloc(), rows.alloc(), rows.free_slots) == (0, 1, 0)
    rows.append(1, ints(4, 5))
    rows.free(1)
    assert rows.free_slots == 1
    assert rows.alloc() == 1
    assert rows.pages(1).tolist() == []
    rows.check()


@pytest.mark.parametrize(
    "counts",
    [(1, 1, 1), (1, 0, 1), (0, 0, 2), (3, 1, 2), (0, 0, 0), (2, 2, 2)],
    ids=str,
)
def test_rows_grow_together_as_they_would_one_by_one(counts: tuple[int, ...]) -> None:
    together, one_by_one = ReqToTokenPool(4, 16, 1), ReqToTokenPool(4, 16, 1)
    for rows in (together, one_by_one):
        for _ in range(4):
            rows.alloc()
        rows.append(1, ints(90, 91))
    slots, pages = ints(3, 1, 0), np.arange(1, sum(counts) + 1, dtype=np.int32)
    together.append_rows(slots, np.array(counts, np.int32), pages)
    for slot, part in zip(slots, np.split(pages, np.cumsum(counts)[:-1]), strict=True):
        one_by_one.append(int(slot), part)
    assert np.array_equal(together.table, one_by_one.table)
    assert np.array_equal(together.held, one_by_one.held)
    together.check()


def test_a_row_never_runs_into_the_next_one() -> None:
    rows = ReqToTokenPool(3, 4, 1)
    slots = ints(rows.alloc(), rows.alloc())
    with pytest.raises(AssertionError, match="a row of 5 pages in a table 4 wide"):
        rows.append(0, ints(1, 2, 3, 4, 5))
    with pytest.raises(AssertionError, match="a row of 5 pages in a table 4 wide"):
        rows.append_rows(slots, ints(5, 1), ints(1, 2, 3, 4, 5, 6))
    rows.append(0, ints(1, 2, 3, 4))
    with pytest.raises(AssertionError, match="a row is longer than 4 pages"):
        rows.append_rows(slots, ints(1, 1), ints(5, 6))


@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
@pytest.mark.parametrize("lens", [(1, 1, 1), (5, 1, 9), (0, 3, 0), (0, 0, 0)], ids=str)
def test_locations_are_page_times_size_plus_offset(page_size: int, lens: tuple[int, ...]) -> None:
    rows = ReqToTokenPool(3, 64, page_size)
    rng = np.random.default_rng(0)
    for _ in range(3):
        rows.append(rows.alloc(), rng.integers(1, 1000, rows.width, dtype=np.int32))
    slots, starts = ints(2, 0, 1), ints(17, 0, 48)
    expected = [
        rows.table[slot, position // page_size] * page_size + position % page_size
        for slot, start, length in zip(slots, starts, lens, strict=True)
        for position in range(start, start + length)
    ]
    found = rows.locations(slots, starts, np.array(lens, np.int32))
    assert found.tolist() == expected
    assert found.dtype == np.int32


def test_writes_name_each_new_entry_once() -> None:
    rows = ReqToTokenPool(3, 8, 1)
    assert rows.take_writes() is None
    a, b = rows.alloc(), rows.alloc()
    rows.append(a, ints(5, 6))
    rows.append(b, ints(7))
    rows.append_rows(ints(b, a), ints(1, 1), ints(8, 9))
    writes = rows.take_writes()
    assert writes is not None
    entries = zip(writes.slots, writes.columns, writes.pages[0], strict=True)
    assert sorted(map(tuple, entries)) == [(a, 0, 5), (a, 1, 6), (a, 2, 9), (b, 0, 7), (b, 1, 8)]
    assert [str(array.dtype) for array in (writes.slots, writes.columns, *writes.pages)] == ["int64", "int64", "int32"]
    assert rows.take_writes() is None
    rows.append_rows(ints(a, b), ints(1, 1), ints(3, 4))
    writes = rows.take_writes()
    assert writes is not None
    assert (writes.slots.tolist(), writes.columns.tolist(), writes.pages[0].tolist()) == ([a, b], [3, 2], [3, 4])


def test_a_slot_that_changes_hands_between_two_steps_is_written_once_and_whole() -> None:
    rows = ReqToTokenPool(1, 8, 1)
    rows.append(rows.alloc(), ints(1, 2, 3))
    rows.take_writes()
    rows.free(0)
    assert rows.take_writes() is None
    rows.append(rows.alloc(), ints(4, 5, 6))
    rows.free(0)
    rows.append(rows.alloc(), ints(7, 8))
    writes = rows.take_writes()
    assert writes is not None
    assert (writes.slots.tolist(), writes.columns.tolist(), writes.pages[0].tolist()) == ([0, 0], [0, 1], [7, 8])


def test_locations_of_a_freed_row_lead_to_the_padding_page() -> None:
    rows = ReqToTokenPool(1, 8, 2)
    rows.append(rows.alloc(), ints(3, 4))
    rows.free(0)
    assert rows.locations(ints(0), ints(0), ints(4)).tolist() == [0, 1, 0, 1]


def test_ranges_one_after_another() -> None:
    assert concatenated_ranges(ints(5, 0, 9), ints(2, 0, 3)).tolist() == [5, 6, 9, 10, 11]
    assert concatenated_ranges(ints(), ints()).tolist() == []
