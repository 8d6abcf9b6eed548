"""ReqToTokenPool: the rows of the page table. It knows which pages stand in which row, not who owns them.

    table[slot] = [ page of positions 0 … p-1 | page of p … 2p-1 | … | last page held | stale entries … ]
                    <------------------------ held[slot] ------------------------->

A row only grows until its slot is freed; no entry of a held page is ever replaced, so what the device must be told is
what lies between the pages it has been told of (`_synced`) and those held.
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
        # Zeroed lazily by the system: rows that are never used cost no memory.
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
        """Take a slot with an empty row."""
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Forget the row; its pages are the caller's business."""
        self.held[slot] = 0
        self._synced[slot] = 0
        self._free.append(slot)

    def pages(self, slot: int) -> Ints:
        """A view of the pages that the row holds."""
        return self.table[slot, : self.held[slot]]

    def append(self, slot: int, pages: Ints) -> None:
        """Put pages behind those that the row holds."""
        start = int(self.held[slot])
        end = start + len(pages)
        assert end <= self.width, f"row of {end} pages in a table of {self.width}"
        self.table[slot, start:end] = pages
        self.held[slot] = end

    def append_rows(self, slots: Ints, counts: Ints, pages: Ints) -> None:
        """Put the next `counts[i]` of `pages` behind those that row `slots[i]` holds. The slots are distinct.

        slots, counts: [R]; pages: [sum of counts].
        """
        held = self.held[slots]
        after = held + counts
        if len(pages) == len(slots) and (counts == 1).all():
            self.table[slots, held] = pages
        else:
            assert after.max(initial=0) <= self.width, "a row is longer than the table is wide"
            self._flat[concatenated_ranges(self._row_starts(slots) + held, counts)] = pages
        self.held[slots] = after

    def locations(self, slots: Ints, starts: Ints, lens: Ints) -> Ints:
        """KV slots (page * page_size + offset) of positions starts[i] … starts[i] + lens[i] - 1, row after row.

        All arguments [R]; the result is [sum of lens].
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
        """Entries that the device has not been told of; None if there are none. They count as told from now on."""
        slots = (self.held != self._synced).nonzero()[0]
        if not len(slots):
            return None
        starts = self._synced[slots]
        counts = self.held[slots] - starts
        self._synced[slots] += counts
        columns = concatenated_ranges(starts, counts).astype(np.int32)
        rows = np.repeat(slots, counts)
        return TableWrites(slots=rows.astype(np.int32), columns=columns, pages=self.table[rows, columns])

    def _row_starts(self, slots: Ints) -> Longs:
        """Index of each row's first entry in the flat table; 64 bits, for tables of more than 2^31 entries."""
        return slots.astype(np.int64) * self.width


def concatenated_ranges(starts: Ints | Longs, counts: Ints) -> Longs:
    """starts[0], starts[0] + 1, … (counts[0] of them), then the same for each further entry."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    shifts: Longs = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(total)
