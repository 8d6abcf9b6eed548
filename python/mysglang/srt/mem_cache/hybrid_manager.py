"""HybridKvManager: a KvManager whose pages have a part of their own for layers that see a window of keys only.

A page numbers the same tokens in all layers. The layers that see everything have it as long as somebody owns it; those
with a window have theirs, under another number, as long as somebody may see it (window_pages.py). So the page table of
the rows, the prefix cache and all that is said of them stay what they are, and only this is added:

    match     ends where no page is missing of the window before the next token
    extend    lets go first what the row does not see any more
    release   what the row leaves in the cache has its last window; what was gone there comes back if the row had it

A model whose layers all have windows has no layer that keeps keys under the rows' own numbers: these only count then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mysglang.srt.forward.page_space import SpaceShape
from mysglang.srt.forward.worker_batch import Floats, Ints, Slots, TableWrites
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_match import PrefixMatch
from mysglang.srt.mem_cache.tree_node import TreeNode
from mysglang.srt.mem_cache.window_pages import MOVE_EVERY, WindowPages, WindowState, row_tokens
from mysglang.srt.mem_cache.window_room import WindowRoom


class HybridAllocator(PageAllocator):
    """Gives and frees the windows' pages along with the rows'."""

    __slots__ = ("_windows",)

    def __init__(self, num_pages: int, page_size: int, windows: Sequence[WindowPages]) -> None:
        super().__init__(num_pages, page_size)
        self._windows = windows

    def alloc(self, count: int) -> Ints:
        pages = super().alloc(count)
        for window in self._windows:
            window.give(pages)
        return pages

    def free(self, pages: Ints) -> None:
        for window in self._windows:
            window.drop(pages)
        super().free(pages)


class HybridKvManager(KvManager):
    """With a pool for each of `windows`, at least one."""

    hybrid_allocator_type: type[HybridAllocator] = HybridAllocator

    def __init__(self, *args: Any, windows: Sequence[SpaceShape]) -> None:
        """The other arguments are KvManager's."""
        assert windows
        self._shapes = windows
        super().__init__(*args)
        slots = self.rows.num_slots
        self._lens: Ints = np.zeros(slots, np.int32)
        """[num_slots] tokens for which pages were asked for last: those before are of steps that are planned."""
        self._shared: Ints = np.zeros(slots, np.int32)
        """[num_slots] pages of each row that are the prefix cache's."""
        self._turns = 0
        """Times that rows were extended together."""
        self._sound: set[int] = set()
        """Slots whose rows had a finite result."""

    # A row's life

    def match(self, ids: Ints, *, extra_key: str, limit: int, tail_end: int = 0) -> PrefixMatch:
        match = super().match(ids, extra_key=extra_key, limit=limit, tail_end=tail_end)
        end = self._living(self.cache.match_pages(match))
        if end == match.num_pages and self._has(match.tail):
            return match
        return replace(match, num_tokens=end * self.page_size, num_pages=end, tail=None)

    def holds(self, match: PrefixMatch) -> bool:
        whole = super().holds(match) and self._living(self.cache.match_pages(match)) == match.num_pages
        return whole and self._has(match.tail)

    def open(self, match: PrefixMatch) -> int:
        pages = self.cache.match_pages(match)
        assert self._living(pages) == len(pages), "a stale match: match again after anything that may evict"
        slot = super().open(match)
        for window in self.windows:
            window.open(slot, self.rows.pages(slot), match.num_tokens)
        self._lens[slot] = match.num_tokens
        self._shared[slot] = len(pages)
        return slot

    def extend(self, slot: int, new_len: int) -> bool:
        self._move_on(np.asarray([slot]))
        if not super().extend(slot, new_len):
            return False
        self._lens[slot] = new_len
        return True

    def extend_rows(self, slots: Slots, new_lens: Ints) -> bool:
        self._turns += 1
        if self._turns % MOVE_EVERY == 0:
            self._move_on(slots)
        if not super().extend_rows(slots, new_lens):
            self._move_on(slots)
            if not super().extend_rows(slots, new_lens):
                return False
        self._lens[slots] = new_lens
        return True

    def commit(self, slot: int, ids: Ints) -> None:
        super().commit(slot, ids)
        self._shared[slot] = self._nodes[slot].end

    def release(self, slot: int, ids: Ints, urgency: int = 0, tail_end: int = 0) -> None:
        self._leave(slot)
        if slot in self._sound:
            self._revive(slot, ids)
        super().release(slot, ids, urgency, tail_end)
        self._sound.discard(slot)

    def discard(self, slot: int) -> None:
        self._leave(slot)
        super().discard(slot)
        self._sound.discard(slot)

    def confirm(self, slot: int) -> None:
        super().confirm(slot)
        self._sound.add(slot)

    # What planning asks

    def pages_short(self, slots: Slots, new_lens: Ints) -> int:
        self._move_on(slots)
        wanted = int(np.maximum(self._pages_of(new_lens) - self.rows.held[slots], 0).sum())
        short = max(wanted - window.num_available for window in self.windows)
        return max(super().pages_short(slots, new_lens), short)

    def window_room(self, slots: Slots, to_come: Floats) -> WindowRoom:
        return HybridRoom(self, slots, to_come)

    def in_spaces(self, locations: Ints) -> tuple[Ints, ...]:
        return (locations, *(window.locations(locations) for window in self.windows))

    def take_writes(self) -> TableWrites | None:
        writes = self.rows.take_writes()
        if writes is None:
            return None
        pages = (writes.pages, *(window.page_of[writes.pages] for window in self.windows))
        return TableWrites(writes.slots, writes.columns, pages)

    def window_states(self) -> tuple[WindowState, ...]:
        return tuple(window.state() for window in self.windows)

    # Care

    def check(self) -> None:
        super().check()
        cached = self.cache.check(list(self._nodes.values()))
        for slot, node in self._nodes.items():
            assert self._shared[slot] == node.end, f"row {slot} stands elsewhere"
        for window in self.windows:
            window.check(list(self._nodes), cached)
            for slot in self._nodes:
                first, needed = int(window.first[slot]), window.first_column(int(self._lens[slot]))
                assert first <= needed, f"row {slot} reads column {first} and above, and needs {needed}"

    # Inside

    def _make_allocator(self, num_pages: int) -> PageAllocator:
        self.windows = tuple(
            WindowPages(shape, self.rows, num_pages, self.allocator_type(shape.num_pages, self.page_size))
            for shape in self._shapes
        )
        return self.hybrid_allocator_type(num_pages, self.page_size, self.windows)

    def _make_room(self, num_pages: int) -> bool:
        if any(num_pages > window.num_available for window in self.windows):
            return False
        if not super()._make_room(num_pages):
            return False
        for window in self.windows:
            window.evict(max(0, num_pages - window.allocator.num_free))
        return True

    def _living(self, pages: Ints) -> int:
        """How many of these pages of a prefix can be gone on from in all layers."""
        while (end := min(window.living(pages) for window in self.windows)) < len(pages):
            pages = pages[:end]
        return end

    def _has(self, tail: TreeNode | None) -> bool:
        """Whether the page that a match has behind its whole ones, if any, is there in all layers."""
        return tail is None or all(window.page_of[tail.value].all() for window in self.windows)

    def _move_on(self, slots: Slots) -> None:
        lens = self._lens[slots]
        for window in self.windows:
            window.move_on(slots, lens, self._shared)

    def _leave(self, slot: int) -> None:
        for window in self.windows:
            window.close(slot)
        self._lens[slot] = self._shared[slot] = 0

    def _revive(self, slot: int, ids: Ints) -> None:
        """Where the cache has the row's tokens already, by pages of another row, it keeps those."""
        node = self._nodes[slot]
        start, end = node.end, len(ids) // self.page_size
        known = self.cache.known_pages(node, self._ids_of(ids, start, end))
        copies = self.rows.pages(slot)[start : start + len(known)]
        for window in self.windows:
            window.revive(known, copies)


class HybridRoom:
    """Reckons with what rows may still need: each up to its window, if it generates so much."""

    def __init__(self, kv: HybridKvManager, slots: Slots, to_come: Floats) -> None:
        self._kv = kv
        self._most = [row_tokens(window.window, kv.page_size) for window in kv.windows]
        self._aside = [
            float(np.minimum(to_come, np.maximum(most - window.held_tokens(slots), 0)).sum())
            for most, window in zip(self._most, kv.windows, strict=True)
        ]

    def lacking(self, match: PrefixMatch, end: int, to_come: int) -> float:
        kv = self._kv
        pages = kv.cache.match_pages(match)
        new = -(-end // kv.page_size) - match.num_pages
        lacking = []
        for window, most, aside in zip(kv.windows, self._most, self._aside, strict=True):
            locked = window.unread(pages[window.first_column(match.num_tokens) :])
            # The next chunk of a prompt needs as much again, beside the window before it.
            wanted = (new + locked) * kv.page_size + min(to_come, most)
            lacking.append(wanted + aside - window.num_available * kv.page_size)
        return max(lacking)

    def admit(self, end: int, to_come: int) -> None:
        for number, most in enumerate(self._most):
            self._aside[number] += min(to_come, max(most - end, 0))
