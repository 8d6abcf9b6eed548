"""ReqToTokenPool: the rows of the page table. It knows which pages stand in which row, not who owns them.

    table[slot] = [ page of positions 0 … p-1 | page of p … 2p-1 | … | last page held | 0 0 0 … ]
                    <------------------------ held[slot] ------------------------->

A row only grows until its slot is freed, and no entry of a held page is ever replaced. So what the device must be told
are the entries between those it was told of (`_synced`) and those held.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Ints, Longs, TableWrites


class ReqToTokenPool:
    """Slots 0 … num_slots - 1 with a row of page numbers each; the row after them is for padding, all page 0."""

    def __init__(self, num_slots: int, max_context: int, page_size: int) -> None:
        assert num_slots >= 1 and max_context >= 1 and page_size >= 1
        self.num_slots = num_slots
        self.page_size = page_size
        self.width = -(-max_context // page_size)
        # The system zeroes this memory when it is first touched: rows that are never used cost none.
        self.table: Ints = np.zeros((num_slots + 1, self.width), np.int32)
        self.held: Ints = np.zeros(num_slots, np.int32)
        """[num_slots] pages in each row; 0 for free slots."""
        self._synced: Ints = np.zeros(num_slots, np.int32)
        self._flat: Ints = self.table.reshape(-1)
        self._free: list[int] = list(range(num_slots - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def alloc(self) -> int:
        """Take a slot with an empty row; the caller has seen to it that one is free."""
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Forget the row; its pages are the caller's business."""
        self.pages(slot)[:] = 0  # Whoever still asks for its locations by mistake is led to the page for padding.
        self.held[slot] = 0
        self._synced[slot] = 0
        self._free.append(slot)

    def pages(self, slot: int) -> Ints:
        """The pages that the row holds: a view, for as long as the slot is not freed."""
        return self.table[slot, : self.held[slot]]

    def append(self, slot: int, pages: Ints) -> None:
        """Put pages behind those that the row holds."""
        start = int(self.held[slot])
        end = start + len(pages)
        assert end <= self.width, f"a row of {end} pages in a table {self.width} wide"
        self.table[slot, start:end] = pages
        self.held[slot] = end

    def append_rows(self, slots: Ints, counts: Ints, pages: Ints) -> None:
        """Put the next `counts[i]` of `pages` behind those that row `slots[i]` holds. The slots are distinct.

        slots, counts: [R], counts >= 0; pages: [sum of counts].
        """
        growing = np.count_nonzero(counts)
        if growing < len(slots):
            rows = counts.nonzero()[0]
            slots, counts = slots[rows], counts[rows]
        held = self.held.take(slots)
        after = held + counts
        if len(pages) == growing:  # One page each, as when rows decode.
            self.table[slots, held] = pages
        else:
            assert after.max() <= self.width, f"a row of {after.max()} pages in a table {self.width} wide"
            self._flat[concatenated_ranges(self._row_starts(slots) + held, counts)] = pages
        self.held[slots] = after

    def locations(self, slots: Ints, starts: Ints, lens: Ints) -> Ints:
        """KV slots (page * page_size + offset) of positions starts[i] … starts[i] + lens[i] - 1, row after row.

        All arguments [R]; the result is [sum of lens]. The rows hold pages for these positions.
        """
        rows: Longs = self._row_starts(slots)
        positions: Ints | Longs = starts
        if not (lens == 1).all():
            rows = np.repeat(rows, lens)
            positions = concatenated_ranges(starts, lens)
        if self.page_size == 1:
            return self._flat.take(rows + positions)
        columns = positions // self.page_size
        offsets = positions - columns * self.page_size
        return self._flat.take(rows + columns) * np.int32(self.page_size) + offsets.astype(np.int32)

    def take_writes(self) -> TableWrites | None:
        """Entries that the device was not told of; None if there are none. They count as told from now on."""
        slots = (self.held != self._synced).nonzero()[0]
        if not len(slots):
            return None
        columns: Ints | Longs = self._synced.take(slots)
        after = self.held.take(slots)
        self._synced[slots] = after
        counts = after - columns
        if not (counts == 1).all():
            slots = np.repeat(slots, counts)
            columns = concatenated_ranges(columns, counts)
        return TableWrites(
            slots=slots.astype(np.int32),
            columns=columns.astype(np.int32, copy=False),
            pages=self.table[slots, columns],
        )

    def check(self) -> None:
        """Assert that rows end where they should. For tests and debugging: visits the whole table."""
        columns = np.arange(self.width)
        assert not self.table[:-1][columns >= self.held[:, None]].any(), "an entry beyond what its row holds"
        assert not self.table[-1].any(), "an entry in the row for padding"
        assert (self._synced <= self.held).all(), "the device was told of more than there is"
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert not self.held[self._free].any(), "a free slot holds pages"

    def _row_starts(self, slots: Ints) -> Longs:
        """Index of each row's first entry in the flat table; 64 bits, for tables of more than 2^31 entries."""
        return slots.astype(np.int64) * self.width


def concatenated_ranges(starts: Ints | Longs, counts: Ints) -> Longs:
    """starts[0], starts[0] + 1, … (counts[0] of them), then the same for each further entry."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    shifts: Longs = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(total)
