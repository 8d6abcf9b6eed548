"""Page spaces as planning sees them: which rows may have pages, what must be evicted, and what a prompt would need.

    RowSpace        the rows' own pages: a row keeps all of its pages, and the prefix cache what it can
    WindowSpace     pages of layers with a window (window_space.py): a row keeps the last ones, and they follow the
                    rows' pages: a page that is given, shared or freed there is given, shared or freed here

`KvManager` asks every space the same. Reservation is one transaction over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.prefix_cache import PrefixCache
from mysglang.srt.mem_cache.tree_node import PrefixMatch


@dataclass(frozen=True, slots=True)
class SpaceState:
    """Use of a space's memory, in tokens (whole pages). free + evictable + held == total."""

    window: int | None
    total: int
    free: int
    evictable: int
    """In the prefix cache, and needed by no row: free as soon as it is wanted."""
    held: int
    """Needed by open rows."""


class SpaceRoom(Protocol):
    """The free space of one page space while a step is planned, minus what rows may still need. Amounts in tokens."""

    def lacking(self, match: PrefixMatch, end: int, prompt: int, to_come: int) -> float:
        """Returns the number of tokens that must become free before a row with this match can be admitted: its tokens
        before `end` are computed in this step, the rest of its `prompt` tokens and `to_come` more later. 0 or less: it
        can be admitted now.
        """
        ...

    def admit(self, end: int, prompt: int, to_come: int) -> None:
        """Reserves what an admitted row of this size may still need."""
        ...


class Space(Protocol):
    """A set of pages with their own numbers, for layers that keep the same tokens."""

    @property
    def num_available(self) -> int:
        """Pages that are free, or would be after evicting all that no row needs."""
        ...

    def make_room(self, num_pages: int) -> None:
        """Evicts until so many pages are free."""
        ...

    def longest_row(self, chunk: int | None, context: int) -> int:
        """Returns the largest number of tokens, up to `context`, that can be reserved for a row that is alone. `chunk`:
        most new tokens of a step; None: all.
        """
        ...

    def state(self) -> SpaceState: ...


class Bound(Protocol):
    """A limit, in addition to the pages of the first space, on how much of a cached prefix a row can use."""

    def reach(self, pages: Ints) -> int:
        """Returns the number of these pages, which begin a prompt, after which a row can continue."""
        ...

    def has(self, pages: Ints) -> bool:
        """True if a row can continue inside these partly filled pages."""
        ...

    def confirm(self, slot: int) -> None:
        """Notes that a step of the row had a finite result."""
        ...

    def release(self, slot: int, known: Ints, copies: Ints) -> None:
        """Releases a row whose tokens go to the prefix cache. The cache has the first of them already: in the pages
        `known`, of which the row has `copies`.
        """
        ...

    def close(self, slot: int) -> None:
        """Releases a row. Its pages that the prefix cache does not have will be freed."""
        ...

    def check(self, rows: Mapping[int, int], cached: Ints) -> None:
        """Raise AssertionError for a contradiction in the bookkeeping. For tests: visits all pages.

        It is given the pages of the prefix cache that each open row (by slot) has, and all pages of the prefix cache.
        """
        ...


class RowSpace:
    """The page space whose page numbers rows and the prefix cache use."""

    def __init__(self, allocator: PageAllocator, cache: PrefixCache) -> None:
        self._allocator = allocator
        self._cache = cache
        self.evicted = 0
        """Cached pages that were taken for others since the start."""

    @property
    def num_available(self) -> int:
        return self._allocator.num_free + self._cache.evictable_pages

    def make_room(self, num_pages: int) -> None:
        short = num_pages - self._allocator.num_free
        if short > 0:
            self._cache.evict(short)
            self.evicted += short

    def longest_row(self, chunk: int | None, context: int) -> int:
        return min(context, self._allocator.num_pages * self._allocator.page_size)

    def state(self) -> SpaceState:
        size, total = self._allocator.page_size, self._allocator.num_pages
        free, evictable = self._allocator.num_free, self._cache.evictable_pages
        return SpaceState(None, total * size, free * size, evictable * size, (total - free - evictable) * size)


class RowMemory(Protocol):
    """The part of the KvManager that `RowRoom` needs. Amounts in tokens."""

    def available_tokens(self) -> int: ...

    def tokens_to_lock(self, match: PrefixMatch) -> int: ...


class RowRoom:
    """The free space of the rows' own pages. A row may need one page for every token to come."""

    def __init__(self, memory: RowMemory, aside: float) -> None:
        """`aside`: number of tokens that running rows may still generate."""
        self._memory = memory
        self._aside = aside

    def lacking(self, match: PrefixMatch, end: int, prompt: int, to_come: int) -> float:
        memory = self._memory
        # Opening locks the prefix: what could be evicted before cannot any more.
        needed = prompt - match.num_tokens + to_come + memory.tokens_to_lock(match)
        return needed - (memory.available_tokens() - self._aside)

    def admit(self, end: int, prompt: int, to_come: int) -> None:
        # Later chunks of its prompt are not set aside: they come before any other prompt, and wait if they must.
        self._aside += to_come


class Room:
    """The free space of all page spaces: a prompt fits if it fits in each."""

    def __init__(self, parts: Sequence[SpaceRoom]) -> None:
        self._parts = parts

    def lacking(self, match: PrefixMatch, end: int, prompt: int, to_come: int) -> float:
        """Returns what `SpaceRoom.lacking` does, for the space that lacks most."""
        return max(part.lacking(match, end, prompt, to_come) for part in self._parts)

    def admit(self, end: int, prompt: int, to_come: int) -> None:
        for part in self._parts:
            part.admit(end, prompt, to_come)
