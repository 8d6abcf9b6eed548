"""WindowSpace: the pages of layers that see a window of keys only. They follow the rows' own pages.

    pages        4  5  6  7  8  9 10 11      of the rows and of the prefix cache: they number the tokens, and the layers
                                             that see everything keep their keys and values under these numbers
    page_of      0  0  0  3  7  1  2  6      the number in this space; 0, the null page: nowhere any more
                          └──── read ────┘   what a row may still see

A page that rows read stays. What a row has left behind is freed at once if it is the row's own. If the prefix cache has
it, it stays for later rows, until its memory is wanted: then the page that was left longest ago goes. This file knows
no token and no tree: the prefix cache goes on holding a page whose keys of these layers are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from mysglang.srt.forward.worker_batch import Bools, Floats, Ints, Longs, Slots
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.prefix_cache import PrefixCache
from mysglang.srt.mem_cache.req_to_token import ReqToTokenPool, concatenated_ranges
from mysglang.srt.mem_cache.spaces import SpaceRoom, SpaceState
from mysglang.srt.mem_cache.tree_node import PrefixMatch

LAG = 8
"""Tokens behind the window that a row keeps: its last planned tokens may be taken back when it ends, and a row that
goes on from there then still has a whole window.
"""
MOVE_EVERY = 8
"""Decode steps after which rows let go what they do not see any more; earlier where memory is short."""


def row_tokens(window: int, page_size: int) -> int:
    """Returns the largest number of tokens, in whole pages, that a row holds in addition to those that a step
    writes.
    """
    return (-(-(window + LAG + MOVE_EVERY) // page_size) + 2) * page_size


def least_tokens(window: int, page_size: int, chunk: int | None, context: int) -> int:
    """Returns the number of tokens, in whole pages, that a request of up to `context` tokens needs to run alone.
    `chunk`: most new tokens of a step; None: all.
    """
    whole = -(-context // page_size) * page_size
    if chunk is None:
        return whole
    return min(whole, row_tokens(window, page_size) + -(-chunk // page_size) * page_size)


class WindowSpace:
    """The page space of layers with one window. `rows`: the space whose pages these follow."""

    def __init__(
        self, window: int, rows: ReqToTokenPool, num_pages: int, allocator: PageAllocator, cache: PrefixCache
    ) -> None:
        """`num_pages`: number of pages of the rows and the prefix cache, which are numbered from 1. `allocator`:
        allocates pages of this space.
        """
        self.window = window
        self.match_pages = cache.match_pages
        self.page_size = rows.page_size
        self.allocator = allocator
        self.page_of: Ints = np.zeros(num_pages + 1, np.int32)
        """[num_pages + 1] the window's page; 0: none."""
        self.first: Ints = np.zeros(rows.num_slots, np.int32)
        """[num_slots] from which column on a row reads its pages."""
        self.num_read = 0
        """Pages that rows read."""
        self._lens: Ints = np.zeros(rows.num_slots, np.int32)
        """[num_slots] tokens that planned steps surely write: later steps begin there, or behind."""
        self._shared: Ints = np.zeros(rows.num_slots, np.int32)
        """[num_slots] pages of each row that are the prefix cache's."""
        self._sound: set[int] = set()
        """Slots whose rows had a finite result."""
        self._turns = 0
        """Times that rows were extended together."""
        self._rows = rows
        self._readers: Ints = np.zeros(num_pages + 1, np.int32)
        self._left: Longs = np.zeros(num_pages + 1, np.int64)
        """When the last reader left; 0 where there is none to leave, or nothing to be left."""
        self._clock = 0
        # (when, pages): an entry holds for those of its pages that were left then and not since.
        self._queue: deque[tuple[int, Ints]] = deque()
        self._queued = 0

    @property
    def num_evictable(self) -> int:
        """Pages of the prefix cache that no row reads."""
        return self.allocator.num_pages - self.allocator.num_free - self.num_read

    @property
    def num_available(self) -> int:
        """Pages that no row reads, and free pages."""
        return self.allocator.num_pages - self.num_read

    # Pages that rows see

    def first_column(self, position: int) -> int:
        """Returns the first page of which a query at this position can see a key."""
        return max(0, position - self.window + 1) // self.page_size

    def reach(self, pages: Ints) -> int:
        """Returns the number of these pages, which begin a prompt, after which a row can continue: no page of the
        window before the next token may be missing.
        """
        gone = (self.page_of[pages] == 0).nonzero()[0]
        if not len(gone):  # nearly always
            return len(pages)
        # Between two gaps the longest prefix has most behind it.
        ends = np.append(gone, len(pages))
        seen_from = np.maximum(0, ends * self.page_size - self.window + 1) // self.page_size
        sound = seen_from > np.append(-1, gone)
        return int(ends[sound.nonzero()[0][-1]])

    def has(self, pages: Ints) -> bool:
        """True if all of these pages are still there."""
        return bool(self.page_of[pages].all())

    def unread(self, pages: Ints) -> int:
        """Returns how many of these pages no row reads."""
        return int(np.count_nonzero(self._readers[pages] == 0))

    def held_tokens(self, slots: Slots) -> Ints:
        """Returns [R] how many tokens each of these rows holds in this space."""
        held: Ints = (self._rows.held[slots] - self.first[slots]) * np.int32(self.page_size)
        return held

    # A row's pages

    def give(self, pages: Ints) -> None:
        """Gives entries to these new pages of one row. The caller has made sure that there is room."""
        at = pages.astype(np.intp)  # once, instead of at each use
        self.page_of[at] = self.allocator.alloc(len(pages))
        self._readers[at] = 1
        self.num_read += len(pages)

    def open(self, slot: int, pages: Ints, num_tokens: int, shared: int) -> None:
        """Begins a row with these pages, which hold `num_tokens` tokens, from a prefix at which it can continue. The
        first `shared` pages belong to the prefix cache.
        """
        first = self.first[slot] = self.first_column(num_tokens)
        seen = pages[first:]
        readers = self._readers[seen]
        self.num_read += len(seen) - int(np.count_nonzero(readers))
        self._readers[seen] = readers + 1
        self._left[seen] = 0
        self._lens[slot] = num_tokens
        self._shared[slot] = shared

    def turn(self, slots: Slots, lows: Ints | None) -> None:
        """Frees from time to time the pages that rows no longer attend to. Called before a decode step extends these
        rows.

        lows: [R] tokens that are surely written; None: all for which they have pages.
        """
        self._turns += 1
        if lows is not None:
            self.extended(slots, lows)
        if self._turns % MOVE_EVERY == 0:
            self.let_go(slots)

    def extended(self, slots: Slots | int, lens: Ints | int) -> None:
        """Notes the planned lengths that are surely written: later steps begin there, or after."""
        self._lens[slots] = lens

    def trim(self, slot: int, pages: int, length: int) -> None:
        """Prepares a row for giving back all but its first `pages` pages, which hold `length` tokens."""
        kept = max(pages, int(self.first[slot]))
        self._leave_own(self._rows.pages(slot)[kept:])
        self._lens[slot] = min(int(self._lens[slot]), length)

    def share(self, slot: int, pages: int) -> None:
        """Notes that the first `pages` pages of the row now belong to the prefix cache."""
        self._shared[slot] = pages

    def confirm(self, slot: int) -> None:
        """Marks the row as sound, so that its pages may replace pages that are gone. A step of the row had a finite
        result.
        """
        self._sound.add(slot)

    def let_go(self, slots: Slots) -> None:
        """Frees the pages of these rows, [R] and distinct, that no planned step of theirs can see any more."""
        lens = self._lens[slots]
        after = np.maximum(0, lens - (LAG + self.page_size - 1 + self.window - 1)) // self.page_size
        first = self.first[slots]
        moving = (after > first).nonzero()[0]
        if not len(moving):
            return
        slots, first, after = slots[moving], first[moving], after[moving]
        self.first[slots] = after
        counts = after - first
        owners, columns = np.repeat(slots, counts), concatenated_ranges(first, counts)
        pages = self._rows.pages_at(owners, columns)
        own: Bools = columns >= self._shared[owners]
        if np.count_nonzero(own) == len(own):
            self._leave_own(pages)
            return
        self._leave_own(pages[own])
        self.leave(pages[~own])

    def close(self, slot: int) -> None:
        """Releases a row. Its pages that the prefix cache does not take will be dropped."""
        self.leave(self._rows.pages(slot)[self.first[slot] :])
        self.first[slot] = self._lens[slot] = self._shared[slot] = 0
        self._sound.discard(slot)

    def release(self, slot: int, known: Ints, copies: Ints) -> None:
        """Releases a row whose tokens go to the prefix cache. The cache has the first of them already: in the pages
        `known`, of which the row has `copies`.
        """
        sound = slot in self._sound
        self.close(slot)
        if sound:
            self.revive(known, copies)

    def leave(self, pages: Ints) -> None:
        """Removes a reader of pages that the prefix cache has. A page occurs once for each row that stops reading
        it.
        """
        np.subtract.at(self._readers, pages, 1)
        alone = pages[self._readers[pages] == 0]
        if len(alone) > 1:
            # Rows that move on together may leave the same page.
            alone = alone[np.sort(np.unique(alone, return_index=True)[1])]
        self.num_read -= len(alone)
        self._enqueue(alone)

    def _leave_own(self, pages: Ints) -> None:
        self._readers[pages] = 0
        self.num_read -= len(pages)
        self.drop(pages)

    # Giving back

    def drop(self, pages: Ints) -> None:
        """Frees the entries of these pages, which no row reads."""
        held = self.page_of[pages]
        self.allocator.free(held[held != 0])
        self.page_of[pages] = 0
        self._left[pages] = 0

    def make_room(self, num_pages: int) -> None:
        """Evicts until so many pages are free."""
        self.evict(max(0, num_pages - self.allocator.num_free))

    def evict(self, num_pages: int) -> None:
        """Frees that many evictable pages; pages that rows have left behind go first.

        Among the pages that a row left at once, those at the beginning go first: prefixes that end behind them keep
        their windows longest.
        """
        assert num_pages <= self.num_evictable
        while num_pages > 0:
            when, pages = self._queue.popleft()
            self._queued -= len(pages)
            valid = pages[self._left[pages] == when]
            self.drop(valid[:num_pages])
            if len(valid) > num_pages:
                self._queue.appendleft((when, valid[num_pages:]))
                self._queued += len(valid) - num_pages
            num_pages -= len(valid)

    def revive(self, pages: Ints, copies: Ints) -> None:
        """Gives pages of the prefix cache whose window entries were freed the entries of `copies`, which no row reads
        any more. Both hold the same tokens after the same prefix.
        """
        better = (self.page_of[pages] == 0) & (self.page_of[copies] != 0)
        pages, copies = pages[better], copies[better]
        if len(pages):
            self.page_of[pages] = self.page_of[copies]
            self.page_of[copies] = 0
            self._left[copies] = 0
            self._enqueue(pages)

    def _enqueue(self, pages: Ints) -> None:
        if not len(pages):
            return
        self._clock += 1
        self._left[pages] = self._clock
        self._queue.append((self._clock, pages))
        self._queued += len(pages)
        if self._queued > 2 * len(self.page_of):
            self._tidy()

    def _tidy(self) -> None:
        """Removes entries of the queue that are no longer valid."""
        kept = [(when, pages[self._left[pages] == when]) for when, pages in self._queue]
        self._queue = deque(entry for entry in kept if len(entry[1]))
        self._queued = sum(len(pages) for _, pages in self._queue)

    # Telling

    def numbers(self, pages: Ints) -> Ints:
        """Returns the rows' pages by the numbers of this space."""
        found: Ints = self.page_of[pages]
        return found

    def locations(self, locations: Ints) -> Ints:
        """Converts KV slots in the rows' pages to KV slots in the window's pages."""
        if self.page_size == 1:
            found: Ints = self.page_of[locations]
            return found
        pages = locations // self.page_size
        at: Ints = self.page_of[pages] * np.int32(self.page_size) + (locations - pages * self.page_size)
        return at

    def room(self, slots: Slots, to_come: Floats) -> SpaceRoom:
        return WindowRoom(self, slots, to_come)

    def longest_row(self, chunk: int | None, context: int) -> int:
        total = self.allocator.num_pages * self.page_size
        return context if least_tokens(self.window, self.page_size, chunk, context) <= total else total

    def state(self) -> SpaceState:
        size = self.page_size
        return SpaceState(
            window=self.window,
            total=self.allocator.num_pages * size,
            free=self.allocator.num_free * size,
            evictable=self.num_evictable * size,
            held=self.num_read * size,
        )

    def check(self, rows: Mapping[int, int], cached: Ints) -> None:
        """Raise AssertionError for a contradiction in the bookkeeping. For tests: visits all pages.

        It is given the pages of the prefix cache that each open row (by slot) has, and all pages of the prefix cache.
        """
        slots = list(rows)
        for slot, shared in rows.items():
            assert self._shared[slot] == shared, f"row {slot} stands elsewhere"
            first, needed = int(self.first[slot]), self.first_column(int(self._lens[slot]))
            assert first <= needed, f"row {slot} reads column {first} and above, and needs {needed}"
        readers = np.zeros_like(self._readers)
        for slot in slots:
            np.add.at(readers, self._rows.pages(slot)[self.first[slot] :], 1)
        assert np.array_equal(readers, self._readers), "readers of a window's pages are miscounted"
        assert not self._readers[self.page_of == 0].any(), "a page is gone that a row may still see"
        live = self.page_of.nonzero()[0]
        owned = np.concatenate([self.allocator.free_pages(), self.page_of[live]])
        owners = np.bincount(owned, minlength=self.allocator.num_pages + 1)
        assert owners[0] == 0 and (owners[1:] == 1).all(), "a window's pages without exactly one owner"
        assert self.num_read == np.count_nonzero(readers), "the count of a window's read pages is off"
        idle = live[readers[live] == 0]
        assert np.isin(idle, cached).all(), "a window's page is kept without an owner"
        queued = [pages[self._left[pages] == when] for when, pages in self._queue]
        found = np.sort(np.concatenate(queued)) if queued else idle[:0]
        assert np.array_equal(found, np.sort(idle)), "what is evictable of a window is not what is queued"


class WindowRoom:
    """The free space of a window's pages, minus what rows may still need: each up to its window, if it generates so
    much.
    """

    def __init__(self, space: WindowSpace, slots: Slots, to_come: Floats) -> None:
        self._space = space
        self._most = row_tokens(space.window, space.page_size)
        """Largest number of tokens that a row holds, in addition to those that a step writes."""
        self._aside = float(np.minimum(to_come, np.maximum(self._most - space.held_tokens(slots), 0)).sum())

    def lacking(self, match: PrefixMatch, end: int, prompt: int, to_come: int) -> float:
        space = self._space
        size = space.page_size
        new = -(-end // size) - match.num_pages
        locked = space.unread(space.match_pages(match)[space.first_column(match.num_tokens) :])
        # The next chunk of a prompt needs the same amount again, in addition to the window before it.
        wanted = (new + locked) * size + min(prompt - end + to_come, self._most)
        return wanted + self._aside - space.num_available * size

    def admit(self, end: int, prompt: int, to_come: int) -> None:
        self._aside += min(prompt - end + to_come, max(self._most - end, 0))
