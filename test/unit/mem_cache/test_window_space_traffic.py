"""KvManager under random traffic with the pools of layers with a window. They are compared with a slow model of what
each row may still see, and with a device that records whose token each of their KV slots holds.
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import invariant, precondition, rule

from fixtures.kv_traffic import MAX_CONTEXT, NUM_SLOTS, STALE, WHICH, ManagerMachine, Prefix, Row, array, marks
from fixtures.traffic import drive
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.mem_cache.factory import PrefixCacheName, prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.window_space import LAG

WINDOW_TOKENS = 48


class WindowMachine(ManagerMachine):
    """Two windows, the pool of each shorter than that of the rows' pages."""

    windows: tuple[int, ...] = (6, 20)

    def make_kv(self) -> KvManager:
        self.firsts: dict[int, list[int]] = {}
        """Slot -> the first column that the row reads, for each window."""
        self.reserved: dict[int, int] = {}
        """Slot -> tokens for which it had pages at last."""
        shapes = [SpaceShape(WINDOW_TOKENS // self.page_size, self.page_size, window) for window in self.windows]
        self.device_windows = [np.full((shape.num_pages + 1) * self.page_size, STALE, np.int64) for shape in shapes]
        self.windowed = KvManager(
            [SpaceShape(self.num_pages, self.page_size), *shapes], NUM_SLOTS, MAX_CONTEXT, prefix_cache(self.cache)
        )
        self.device_window_tables = [np.zeros_like(self.windowed.rows.table) for _ in shapes]
        return self.windowed

    # The model

    def first_column(self, number: int, position: int) -> int:
        seen = [p for p in range(position + 1) if p > position - self.windows[number]]
        return min(seen) // self.page_size

    def reading(self, number: int) -> set[int]:
        """The rows' pages of which some row may still see a part."""
        return {page for slot, row in self.rows.items() for page in self.held(row)[self.firsts[slot][number] :]}

    def longest_match(self, row: Row, limit: int) -> int:
        """The longest cached prefix after which no page of a window is missing."""
        for n in range(super().longest_match(row, limit), 0, -1):
            pages = [self.model[self.prefix(row, m)] for m in range(1, n + 1)]
            starts = [self.first_column(number, n * self.page_size) for number in range(len(self.windows))]
            if all(
                window.page_of[page]
                for window, start in zip(self.windowed.followers, starts, strict=True)
                for page in pages[start:]
            ):
                return n
        return 0

    def has_tail(self, prefix: Prefix) -> bool:
        return super().has_tail(prefix) and all(
            window.page_of[self.model[prefix]] for window in self.windowed.followers
        )

    def fits(self, wanted: dict[int, int], done: bool) -> bool:
        total = sum(wanted.values())
        self.pass_by(list(wanted), done)
        for number, window in enumerate(self.windowed.followers):
            room = WINDOW_TOKENS // self.page_size - len(self.reading(number))
            assert window.num_available == room - (total if done else 0)
            if total > room:
                return False
        return super().fits(wanted, done)

    def pass_by(self, slots: list[int], done: bool) -> None:
        """These rows may have freed pages that they no longer see, because all tokens before their reservation are
        planned; they must have freed them if there was no room.
        """
        for slot in slots:
            for number in range(len(self.windows)):
                # A page may be asked for again from its beginning, and what was planned last may be taken back.
                position = self.reserved[slot] - LAG - (self.page_size - 1)
                if position >= 0:
                    column = max(self.firsts[slot][number], self.first_column(number, position))
                    found = int(self.windowed.followers[number].first[slot])
                    assert self.firsts[slot][number] <= found <= column
                    assert done or found == column
                    self.firsts[slot][number] = found

    def reserve(self, lengths: dict[int, int], done: bool) -> None:
        super().reserve(lengths, done)
        if done:
            self.reserved |= lengths

    def open(self, row: Row, match: object) -> None:
        super().open(row, match)  # type: ignore[arg-type]
        slot = next(reversed(self.rows))
        self.reserved[slot] = row.written
        self.firsts[slot] = [self.first_column(number, row.written) for number in range(len(self.windows))]

    # What happens

    def write(self, slot: int, end: int) -> None:
        row = self.rows[slot]
        where = self.kv.locations(array((slot,)), array((row.written,)), array((end - row.written,)))
        told = marks(row.namespace, row.ids[:end])[row.written :]
        for device, locs in zip(self.device_windows, self.windowed.in_spaces(where)[1:], strict=True):
            assert locs.all(), "a token is written nowhere"
            device[locs] = told
        super().write(slot, end)

    @precondition(lambda self: self.rows)
    @rule(which=WHICH)
    def have_a_result(self, which: int) -> None:
        """Pages that the row leaves behind may replace missing ones."""
        self.kv.confirm(list(self.rows)[which % len(self.rows)])

    def close(self, slot: int, keep: int, tail_end: int = 0) -> None:
        row = self.rows[slot]
        room = len(self.held(row)) * self.page_size
        late = self.kv.locations(array((slot,)), array((keep,)), array((room - keep,)))
        lost = self.windowed.in_spaces(late)[1:]
        super().close(slot, keep, tail_end)
        for device, where in zip(self.device_windows, lost, strict=True):
            device[where[where > 0]] = STALE

    @precondition(lambda self: self.rows)
    @rule(keep=st.booleans())
    def discard(self, keep: bool) -> None:
        slot = next(iter(self.rows))
        self.kv.discard(slot)
        del self.rows[slot]

    @precondition(lambda self: self.rows)
    @rule()
    def step(self) -> None:
        writes = self.kv.take_writes()
        if writes is None:
            return
        for table, pages in zip([self.device_table, *self.device_window_tables], writes.pages, strict=True):
            table[writes.slots, writes.columns] = pages

    # What always holds

    @invariant()
    def every_row_finds_what_it_sees(self) -> None:
        for slot, row in self.rows.items():
            pages = self.held(row)
            told = marks(row.namespace, row.ids[: row.written])
            for number, window in enumerate(self.windowed.followers):
                assert int(window.first[slot]) == self.firsts[slot][number]
                for position in range(max(0, row.written - window.window + 1), row.written):
                    page = int(window.page_of[pages[position // self.page_size]])
                    assert page, f"row {slot} does not find position {position} of {row.written}"
                    where = page * self.page_size + position % self.page_size
                    assert self.device_windows[number][where] == told[position]

    @invariant()
    def the_device_knows_where(self) -> None:
        """After a step, at the places that a row sees."""
        unsent = {
            pair
            for writes in self.kv.rows._unsent
            for pair in zip(writes.slots.tolist(), writes.columns.tolist(), strict=True)
        }
        for number, window in enumerate(self.windowed.followers):
            for slot in self.rows:
                held = self.kv.rows.pages(slot)
                for column in range(int(window.first[slot]), len(held)):
                    if (slot, column) not in unsent:
                        assert self.device_window_tables[number][slot, column] == window.page_of[held[column]]

    @invariant()
    def the_account_adds_up(self) -> None:
        for number, state in enumerate(self.kv.state().spaces[1:]):
            assert state.free + state.evictable + state.held == state.total == WINDOW_TOKENS
            assert state.held == len(self.reading(number)) * self.page_size


@pytest.mark.promise(23)
@pytest.mark.parametrize(
    ("page_size", "cache", "windows"),
    [(1, "radix", (6, 20)), (2, "radix", (1, 9)), (4, "radix", (6,)), (16, "radix", (20,)), (2, "chunk", (6,))],
)
def test_random_traffic(page_size: int, cache: PrefixCacheName, windows: tuple[int, ...]) -> None:
    class Machine(WindowMachine):
        """With settings and steps of its own."""

    Machine.page_size, Machine.cache, Machine.windows = page_size, cache, windows
    drive(Machine)
