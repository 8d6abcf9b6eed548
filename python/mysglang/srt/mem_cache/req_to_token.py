"""ReqToTokenPool: the rows of the page table. It knows which pages are in which row, but not which request owns them.

    table[slot] = [ page of positions 0 … p-1 | page of p … 2p-1 | … | last page held | 0 0 0 … ]
                    <------------------------ held[slot] ------------------------->

No entry of a held page is ever replaced. So the device must get the entries that were appended since the last time,
except those that were taken back. An entry that is taken back stays in the device's table until another one is
appended there, and until then no step reads or writes that far.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Ints, Longs, Slots, TableWrites


class ReqToTokenPool:
    """The page tables: slots 0 … num_slots - 1 with a row of page numbers each. The row after them is for padding, all
    page 0.
    """

    def __init__(self, num_slots: int, max_context: int, page_size: int) -> None:
        assert num_slots >= 1 and max_context >= 1 and page_size >= 1
        self.num_slots = num_slots
        self.page_size = page_size
        self.width = -(-max_context // page_size)
        # The system zeroes this memory when it is first touched: rows that are never used cost none.
        self.table: Ints = np.zeros((num_slots + 1, self.width), np.int32)
        self.held: Ints = np.zeros(num_slots, np.int32)
        """[num_slots] pages in each row; 0 for free slots."""
        self._unsent: list[TableWrites] = []
        self._flat: Ints = self.table.reshape(-1)
        self._free: list[int] = list(range(num_slots - 1, -1, -1))
        self._columns: Longs = np.arange(self.width)
        self._slots: Slots = np.arange(num_slots)
        self._columns.flags.writeable = self._slots.flags.writeable = False

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def alloc(self) -> int:
        """Takes a slot with an empty row; the caller has made sure that one is free."""
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Frees the row; the caller must free its pages."""
        self._unsent = [writes.only(writes.slots != slot) for writes in self._unsent]
        self.pages(slot)[:] = 0  # A mistaken read of its locations yields the padding page.
        self.held[slot] = 0
        self._free.append(slot)

    def pages(self, slot: int) -> Ints:
        """Returns the pages that the row holds: a view, for as long as the slot is not freed."""
        return self.table[slot, : self.held[slot]]

    def truncate(self, slot: int, count: int) -> Ints:
        """Removes the pages after the row's first `count`, which no step may use any more, and returns them."""
        freed = self.table[slot, count : self.held[slot]].copy()
        self._unsent = [writes.only((writes.slots != slot) | (writes.columns < count)) for writes in self._unsent]
        self.table[slot, count : self.held[slot]] = 0
        self.held[slot] = count
        return freed

    def append(self, slot: int, pages: Ints) -> None:
        """Appends pages to those of the row."""
        start = int(self.held[slot])
        end = start + len(pages)
        assert end <= self.width, f"a row of {end} pages in a table {self.width} wide"
        self.table[slot, start:end] = pages
        self.held[slot] = end
        # Views: the same slot as often as needed, and columns that are in a row. A prompt has thousands of both.
        slots: Slots = np.ndarray(len(pages), self._slots.dtype, self._slots, slot * self._slots.itemsize, (0,))
        self._unsent.append(TableWrites(slots, self._columns[start:end], (pages,)))

    def append_one(self, slots: Slots, held: Ints, after: Ints, pages: Ints) -> None:
        """Does what `append_rows` does, for one page for each row. held, after: [R] pages of the rows before and
        after.
        """
        assert np.maximum.reduce(after, initial=0) <= self.width, f"a row is longer than {self.width} pages"
        columns = held.astype(np.int64)
        self._flat[slots * self.width + columns] = pages
        self.held[slots] = after
        self._unsent.append(TableWrites(slots, columns, (pages,)))

    def append_rows(self, slots: Slots, counts: Ints, pages: Ints) -> None:
        """Appends the next `counts[i]` of `pages` to those of row `slots[i]`. The slots are distinct.

        slots, counts: [R], counts >= 0; pages: [sum of counts].
        """
        growing = counts.nonzero()[0]
        slots, counts = slots[growing], counts[growing]
        held = self.held[slots]
        if len(pages) == len(slots):
            self.append_one(slots, held, held + 1, pages)
            return
        after = held + counts
        assert after.max() <= self.width, f"a row of {after.max()} pages in a table {self.width} wide"
        slots_of_pages, columns = np.repeat(slots, counts), concatenated_ranges(held, counts)
        self._flat[slots_of_pages * self.width + columns] = pages
        self.held[slots] = after
        self._unsent.append(TableWrites(slots_of_pages, columns, (pages,)))

    def locations(self, slots: Slots, starts: Ints, lens: Ints) -> Ints:
        """Returns the KV slots (page * page_size + offset) of positions starts[i] … starts[i] + lens[i] - 1, row after
        row.

        All arguments [R]; the result is [sum of lens]. The rows hold pages for these positions.
        """
        return self.locations_at(np.repeat(slots, lens), concatenated_ranges(starts, lens))

    def locations_at(self, slots: Slots, positions: Ints | Longs) -> Ints:
        """Returns the KV slot of one position in each request: slots, positions and result are [N]."""
        if self.page_size == 1:
            location: Ints = self._flat[slots * self.width + positions]
            return location
        columns = positions // self.page_size
        offsets = positions - columns * self.page_size
        pages: Ints = self._flat[slots * self.width + columns]
        return pages * np.int32(self.page_size) + offsets.astype(np.int32)

    def pages_at(self, slots: Slots, columns: Longs) -> Ints:
        """Returns one page-table entry for each request: slots, columns and result are [N]."""
        pages: Ints = self._flat[slots * self.width + columns]
        return pages

    def take_writes(self) -> TableWrites | None:
        """Returns the entries that the device does not have yet, in the numbers of the rows' own space; None if there
        are none. They count as sent from now on.
        """
        unsent, self._unsent = self._unsent, []
        return joined([writes for writes in unsent if len(writes.slots)])

    def check(self) -> None:
        """Checks that rows end where they should. For tests and debugging: visits the whole table."""
        columns = np.arange(self.width)
        assert not self.table[:-1][columns >= self.held[:, None]].any(), "an entry beyond what its row holds"
        assert not self.table[-1].any(), "an entry in the row for padding"
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert not self.held[self._free].any(), "a free slot holds pages"


def joined(pieces: list[TableWrites]) -> TableWrites | None:
    """Returns all writes as one; None if there are none."""
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    slots, columns = (np.concatenate(each) for each in zip(*((w.slots, w.columns) for w in pieces), strict=True))
    return TableWrites(slots, columns, (np.concatenate([writes.pages[0] for writes in pieces]),))


def concatenated_ranges(starts: Ints | Longs, counts: Ints) -> Longs:
    """Returns starts[0], starts[0] + 1, … (counts[0] numbers), then the same for each further entry."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    shifts: Longs = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(total)
