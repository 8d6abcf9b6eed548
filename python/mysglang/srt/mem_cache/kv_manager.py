"""KvManager: the memory interface of planning. It knows slots, pages and token ids; no request, no device.

Its verbs speak of rows and tokens, never of a page space: a model with several (spaces.py) changes what is behind them
only. Rows and the prefix cache name pages of the first space, and the others follow it.
These are the calls for a row, which begins on a cached prefix:

    match ──> open ──> extend / extend_rows ──> commit ──> … ──> release
    (no lock) (slot)   (pages for positions)    (share)           (what is whole stays in the cache)
                       └─> load_back, where the host holds more of the prefix than the device

    row   [ pages of the cache, locked through the node that the row stands on | pages of the row's own ]
            0 … node.end - 1                                                     node.end … held - 1

Everything here happens at plan time, ahead of the device. Pages may be freed while a step in flight still writes to
them, and committed before anything is written. Both are harmless only because steps run in order on one stream: the
next owner's writes, and the other readers' reads, come later on it. So work on pages outside of that stream (a copy to
the host, a transfer to another instance) must hold a lock on them until it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mysglang.srt.forward.worker import SpaceShape, StateShape
from mysglang.srt.forward.worker_batch import Floats, Ints, Slots, StateColumns, TableWrites
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.prefix_cache import MakePrefixCache
from mysglang.srt.mem_cache.req_to_token import ReqToTokenPool
from mysglang.srt.mem_cache.spaces import Bound, Room, RowRoom, RowSpace, Space, SpaceState
from mysglang.srt.mem_cache.state_space import NO_COUNTS, NoStates, StateCounts, States, StateSpace
from mysglang.srt.mem_cache.tree_node import PrefixMatch, TreeNode
from mysglang.srt.mem_cache.window_space import WindowSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class KvState:
    """Use of the KV memory, in tokens (whole pages). free + evictable + protected + private == total."""

    total: int
    free: int
    evictable: int
    """Cached tokens that no row uses: they become free as soon as memory is needed."""
    protected: int
    """Cached tokens that open rows use."""
    private: int
    """Held by open rows, not in the cache."""
    nodes: int
    locked_nodes: int
    free_slots: int
    open_rows: int
    host_total: int = 0
    """Tokens in the host's memory, in addition to the other figures."""
    host_free: int = 0
    host_cached: int = 0
    host_locked_nodes: int = 0
    spaces: tuple[SpaceState, ...] = ()
    """Each page space, that of the rows first."""
    states: StateCounts = NO_COUNTS
    """Counts of states, for a model whose layers keep a state for each request."""


class KvManager:
    """Manages the pages of rows, with a prefix cache. All ranks that make the same calls get the same answers."""

    allocator_type: type[PageAllocator] = PageAllocator

    def __init__(
        self,
        spaces: Sequence[SpaceShape],
        num_slots: int,
        max_context: int,
        prefix_cache: MakePrefixCache,
        states: StateShape | None = None,
    ) -> None:
        """`spaces`: the rows' own space, then the spaces that follow it, whose layers have a window. `states`: for a
        model whose layers keep a state for each request.
        """
        first, *others = spaces
        self.page_size = first.page_size
        self.rows = ReqToTokenPool(num_slots, max_context, first.page_size)
        self.allocator = self.allocator_type(first.num_pages, first.page_size)
        self.cache = prefix_cache(self.allocator)
        self.first = RowSpace(self.allocator, self.cache)
        self.followers = tuple(self._follower(shape) for shape in others)
        self.bounds: tuple[Bound, ...] = self.followers
        self.states: States = NoStates()
        self.allocator.followers = self.followers
        if states is not None:
            space = StateSpace(states, self.rows, num_pages=first.num_pages, shares=self.cache.shares)
            self.states, self.bounds = space, (*self.followers, space)
            self.allocator.followers = (*self.followers, space)
        self.spaces: tuple[Space, ...] = (self.first, *self.followers)
        self._nodes: dict[int, TreeNode] = {}
        """Slot -> the node that the row stands on: it owns no page before `node.end`, and every page from there on."""
        self._on_tails: set[int] = set()
        """Slots of rows that began on a page which an earlier row filled in part, until they have a finite result."""
        self.placement = 0
        """Counts rows that came, went or moved to another node: while it stays, rows share what they shared."""

    # A row's life

    def match(self, ids: Ints, *, extra_key: str, limit: int, tail_end: int = 0) -> PrefixMatch:
        """Returns the longest cached prefix of ids[:limit] among requests of the same `extra_key`; `num_tokens` of it.
        It ends with a whole page, or at `tail_end` if a row was released with these tokens and this `tail_end`.

        ids: [N] int32. Nothing is locked, so a match is good until the next call that may evict (`extend`,
        `extend_rows`) or `flush`. Match again after these: `open` refuses a match that has lost pages.
        """
        assert ids.dtype == np.int32
        match = self.cache.match_prefix(ids[:limit], extra_key)
        if match.num_tokens < tail_end <= limit:
            match = self.cache.with_tail(match, ids[:tail_end])
        if (end := self._reach(match)) == match.num_pages and self._has_tail(match):
            return match
        known = match.num_pages * self.page_size
        return replace(match, num_tokens=end * self.page_size, num_pages=end, tail=None, known=known)

    def holds(self, match: PrefixMatch) -> bool:
        """True if the match has lost nothing since it was made, so that it may be opened."""
        return self.cache.holds(match) and self._reach(match) == match.num_pages and self._has_tail(match)

    def tokens_to_lock(self, match: PrefixMatch) -> int:
        """Returns the decrease of `available_tokens` when this match is opened: its part that no open row uses."""
        return self.cache.unlocked_pages(match) * self.page_size

    def open(self, match: PrefixMatch) -> int:
        """Takes a slot for a row that begins with the matched prefix, which is locked until `release`."""
        assert self.rows.free_slots, "no free slot"
        assert self._reach(match) == match.num_pages, "a stale match: match again after anything that may evict"
        node = self.cache.inc_lock_ref(match)
        slot = self.rows.alloc()
        self._nodes[slot] = node
        self.placement += 1
        self.rows.append(slot, self.cache.path_pages(node))
        if match.tail is not None:
            self.rows.append(slot, self.cache.take_tail(match))
            self._on_tails.add(slot)
        for space in self.followers:
            space.open(slot, self.rows.pages(slot), match.num_tokens, match.num_pages)
        self.states.open(slot, self.rows.pages(slot), match)
        return slot

    def extend(self, slot: int, new_len: int) -> bool:
        """Gives the row pages for positions before `new_len`, evicting others if needed. False: nothing changed."""
        for space in self.followers:
            space.let_go(np.asarray([slot]))
        count = self._pages(new_len) - int(self.rows.held[slot])
        if count > 0:
            if not self._make_room(count):
                return False
            self.rows.append(slot, self.allocator.alloc(count))
        for space in self.followers:
            space.extended(slot, new_len)
        return True

    def load_back(self, slot: int, match: PrefixMatch) -> None:
        """Plans to copy the part of a match that only the host has into the row, before the next step.

        The row was opened with this match and has pages for all of it by now.
        """
        if match.host is not None:
            self.cache.lower.load_back(match, self.rows.pages(slot)[match.num_pages : match.host.num_pages])

    def extend_rows(self, slots: Slots, new_lens: Ints, lows: Ints | None = None) -> bool:
        """Does what `extend` does for many rows at once: all of them, or none. The slots are distinct.

        slots: [R] int64; new_lens: [R] int32. lows: [R] tokens that are surely written, if rows may turn out shorter
        than requested: no later step attends to anything before their window. None: as long as requested.
        """
        for space in self.followers:
            space.turn(slots, lows)
        held, wanted = self.rows.held[slots], self._pages_of(new_lens)
        counts = wanted - held
        if np.count_nonzero(counts == 1) == len(counts):  # The usual case of decoding rows with pages of one token.
            if not self._make_room(len(counts)) and not self._make_room_behind(slots, len(counts)):
                return False
            self.rows.append_one(slots, held, wanted, self.allocator.alloc(len(counts)))
        else:
            np.maximum(counts, 0, out=counts)
            total = int(counts.sum())
            if not self._make_room(total) and not self._make_room_behind(slots, total):
                return False
            if total:
                self.rows.append_rows(slots, counts, self.allocator.alloc(total))
        if lows is None:
            for space in self.followers:
                space.extended(slots, new_lens)
        return True

    def trim_rows(self, slots: Slots, lens: Ints) -> None:
        """Frees pages of these rows after so many tokens, which no step in flight writes to. Both [R]."""
        wanted = self._pages_of(lens)
        for slot, count, length in zip(slots.tolist(), wanted.tolist(), lens.tolist(), strict=True):
            if count < self.rows.held[slot]:
                for space in self.followers:
                    space.trim(slot, count, length)
                self.allocator.free(self.rows.truncate(slot, count))

    def commit(self, slot: int, ids: Ints, *, more: bool = False) -> None:
        """Shares the whole pages of `ids`: other rows may match them from now on, even in the same step. A state after
        them is found from the next step on.

        ids: the row's tokens from position 0 on whose keys and values are written by steps that are launched or about
        to be: having committed is a promise to launch. If another row's pages for the next tokens are cached already,
        the row keeps its own and shares nothing beyond, as long as those are there: pages of a running row are never
        replaced. `more`: the prompt goes on behind `ids`.
        """
        assert ids.dtype == np.int32
        node = self._nodes[slot]
        end = len(ids) // self.page_size
        if end > node.end:
            pages = self.rows.pages(slot)
            assert end <= len(pages), "committed beyond the row's pages"
            self.placement += 1
            node = self._nodes[slot] = self.cache.append(node, self._ids_of(ids, node.end, end), pages[node.end : end])
            for space in self.followers:
                space.share(slot, node.end)
        self.states.commit(slot, len(ids), lambda tokens: self._last_page(slot, ids[:tokens]), more=more)

    def release(self, slot: int, ids: Ints, urgency: int = 0, tail_end: int = 0) -> None:
        """Closes the row of a request that ended or was retracted. The whole pages of `ids` stay cached, evictable.

        ids: all tokens from position 0 on whose keys and values were or will be written by launched steps; at least
        what was committed. What the row holds beyond them is freed. `urgency`: of its request, for the eviction policy.
        `tail_end`: if that many tokens of `ids` end inside the page behind the whole ones, it stays too, for one row
        that goes on from exactly there; 0: it does not.
        """
        assert ids.dtype == np.int32
        node = self._nodes.pop(slot)
        self.placement += 1
        start, end = node.end, len(ids) // self.page_size
        pages = self.rows.pages(slot)
        assert start <= end <= len(pages), f"released with {end} pages; {start} are shared, {len(pages)} held"
        if self.bounds:
            # If the cache already has the row's tokens in pages of another row, it keeps those pages.
            known = self.cache.known_pages(node, self._ids_of(ids, start, end))
            for bound in self.bounds:
                bound.release(slot, known, pages[start : start + len(known)])
        if start < end:
            self.cache.insert(node, self._ids_of(ids, start, end), pages[start:end], urgency)
        whole = end * self.page_size
        assert tail_end <= len(ids), "the tail ends behind the row"
        if whole < tail_end:
            self.cache.insert_tail(node, ids[:tail_end], pages[end : end + 1], urgency)
            end += 1
        self.cache.dec_lock_ref(node, urgency)
        self.allocator.free(pages[end:])
        self._on_tails.discard(slot)
        self.rows.free(slot)
        self.cache.lower.left(node, ids[:whole])

    def discard(self, slot: int) -> None:
        """Closes the row, and caches no more of it than it shared already."""
        node = self._nodes.pop(slot)
        self.placement += 1
        private = self.rows.pages(slot)[node.end :]
        for bound in self.bounds:
            bound.close(slot)
        self.allocator.free(private)
        self._on_tails.discard(slot)
        self.cache.dec_lock_ref(node)
        self.rows.free(slot)

    # Which results may be trusted

    def confirm(self, slot: int) -> None:
        """Marks all that this row shares as sound, since a step that read it had a finite result."""
        self.cache.confirm(self._nodes[slot])
        self._on_tails.discard(slot)
        for bound in self.bounds:
            bound.confirm(slot)

    def condemn(self, slot: int) -> bool:
        """Stops the matching of unconfirmed pages that this row has read, since its result was not finite.

        Returns whether the row had found any such page in the cache.
        """
        node = self._nodes[slot]
        self.cache.condemn(node)
        misled = self.states.condemn(slot)
        return misled or node.condemned or slot in self._on_tails

    # What planning asks

    @property
    def free_slots(self) -> int:
        return self.rows.free_slots

    @property
    def total_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.allocator.num_pages * self.page_size

    def longest_row(self, chunk: int | None, context: int) -> int:
        """Returns the largest number of tokens, up to `context`, of a row that is alone in every space. `chunk`: most
        new tokens of a step; None: all.
        """
        return min(space.longest_row(chunk, context) for space in self.spaces)

    def room(self, slots: Slots, to_come: Floats) -> Room:
        """Returns the room for one step beside these running rows, which may still generate `to_come` tokens. Both
        [R].
        """
        return Room([RowRoom(self, float(to_come.sum())), *(space.room(slots, to_come) for space in self.followers)])

    def available_tokens(self) -> int:
        """Returns the number of tokens for which pages are free, or would be after evicting all that no row uses."""
        return self.first.num_available * self.page_size

    @property
    def used_tokens(self) -> int:
        """Tokens in pages that open rows hold."""
        # Heartbeats ask for this at any time, so it must not count as a question of the planners (`available_tokens`).
        return self.total_tokens - self.first.num_available * self.page_size

    def free_tokens(self) -> int:
        """Returns the number of tokens for which there are free pages, without eviction."""
        return self.allocator.num_free * self.page_size

    def tokens_alone(self, slot: int) -> int:
        """Returns how many tokens, in whole pages, only this row uses: closing it makes them free or evictable."""
        node = self._nodes[slot]
        return (int(self.rows.held[slot]) - self.cache.shared_pages(node)) * self.page_size

    def pages_short(self, slots: Slots, new_lens: Ints) -> int:
        """Returns how many pages the shortest space lacks for `extend_rows`, even after eviction; 0 if none."""
        for space in self.followers:
            space.let_go(slots)
        wanted = int(np.maximum(self._pages_of(new_lens) - self.rows.held[slots], 0).sum())
        return max(0, wanted - min(space.num_available for space in self.spaces))

    def locations(self, slots: Slots, starts: Ints, lens: Ints) -> Ints:
        """Returns the KV slots (page * page_size + offset) of positions starts[i] … starts[i] + lens[i] - 1, row after
        row.

        slots: [R] int64; starts, lens: [R] int32; the result [sum of lens] int32.
        """
        return self.rows.locations(slots, starts, lens)

    def next_locations(self, slots: Slots, positions: Ints) -> Ints:
        """Returns the KV slot of one position of each row; all [R]."""
        return self.rows.locations_at(slots, positions)

    @property
    def sharing(self) -> bool:
        """True if any two open rows have pages in common."""
        return self.cache.shared_nodes > 0

    def nodes(self, slots: Slots) -> list[TreeNode]:
        """Returns the node of each open row. A row has the pages on the path to its node, and shares them with all rows
        below that path.
        """
        return [self._nodes[slot] for slot in slots.tolist()]

    def in_spaces(self, locations: Ints) -> tuple[Ints, ...]:
        """Returns the KV slots by the numbers of each page space."""
        if not self.followers:
            return (locations,)
        return (locations, *(space.locations(locations) for space in self.followers))

    def take_writes(self) -> TableWrites | None:
        """Returns the entries to write to the device's page tables before the next step; None if nothing changed."""
        writes = self.rows.take_writes()
        if writes is None or not self.followers:
            return writes
        (pages,) = writes.pages
        return replace(writes, pages=(pages, *(space.numbers(pages) for space in self.followers)))

    def take_states(self, slots: Slots, starts: Ints) -> StateColumns | None:
        """Returns the states of a step of these rows, which start at these tokens, and what it copies; both [R]."""
        return self.states.take(slots, starts)

    def space_states(self) -> tuple[SpaceState, ...]:
        """Returns the account of each page space, that of the rows first."""
        return tuple(space.state() for space in self.spaces)

    @property
    def evicted_tokens(self) -> int:
        """Tokens of cached pages that were taken for others since the start."""
        return self.first.evicted * self.page_size

    def settle(self) -> None:
        """Waits until no page is locked for a copy, for callers that need an exact count of the available memory."""
        self.cache.lower.settle()

    # Care

    def flush(self) -> bool:
        """Empties the cache, if no row is open. Returns whether it did."""
        if self._nodes:
            return False
        self.cache.reset()
        return True

    def state(self) -> KvState:
        """Returns the account of all memory. Visits the open rows, not the tree."""
        size = self.cache.size()
        private = int(self.rows.held.sum()) - sum(node.end for node in self._nodes.values())
        return KvState(
            total=self.total_tokens,
            free=self.allocator.num_free * self.page_size,
            evictable=size.evictable_pages * self.page_size,
            protected=size.protected_pages * self.page_size,
            private=private * self.page_size,
            nodes=size.num_nodes,
            locked_nodes=size.locked_nodes,
            free_slots=self.rows.free_slots,
            open_rows=len(self._nodes),
            host_total=size.host_pages * self.page_size,
            host_free=size.host_free * self.page_size,
            host_cached=size.host_cached * self.page_size,
            host_locked_nodes=size.host_locked_nodes,
            spaces=self.space_states(),
            states=self.states.counts(),
        )

    def check(self) -> None:
        """Checks all invariants; raises an AssertionError that names the broken one. For tests: visits all memory."""
        state = self.state()
        sum_of_parts = state.free + state.evictable + state.protected + state.private
        assert sum_of_parts == state.total, f"pages were lost or doubled: {state}"
        assert state.open_rows + state.free_slots == self.rows.num_slots, f"slots were lost or doubled: {state}"
        self.rows.check()
        private = []
        for slot, node in self._nodes.items():
            row = self.rows.pages(slot)
            assert np.array_equal(row[: node.end], self.cache.path_pages(node)), f"row {slot} is not what it shares"
            private.append(row[node.end :])
        cached = self.cache.check(list(self._nodes.values()))
        owned = np.concatenate([self.allocator.free_pages(), cached, *private])
        owners = np.bincount(owned, minlength=self.allocator.num_pages + 1)
        assert owners[0] == 0, "the page for padding is in use"
        assert (owners[1:] == 1).all(), f"pages without exactly one owner: {1 + np.flatnonzero(owners[1:] != 1)}"
        for bound in self.bounds:
            bound.check({slot: node.end for slot, node in self._nodes.items()}, cached)

    # Inside

    def _follower(self, shape: SpaceShape) -> WindowSpace:
        """Returns a space whose pages follow the given rows' pages."""
        assert shape.window is not None and shape.page_size == self.page_size
        own = self.allocator_type(shape.num_pages, shape.page_size)
        return WindowSpace(shape.window, self.rows, self.allocator.num_pages, own, self.cache)

    def _reach(self, match: PrefixMatch) -> int:
        """Returns the number of pages of a match after which a row can continue in all spaces."""
        if not self.bounds:
            return match.num_pages
        pages = self.cache.match_pages(match)
        while (end := min(bound.reach(pages) for bound in self.bounds)) < len(pages):
            pages = pages[:end]
        return end

    def _has_tail(self, match: PrefixMatch) -> bool:
        """True if the partly filled page of a match, if it has one, is present in all spaces."""
        return match.tail is None or all(bound.has(match.tail.value) for bound in self.bounds)

    def _last_page(self, slot: int, ids: Ints) -> int:
        """Returns the page of the last of these tokens of the row, which end with a page. If the prefix cache has
        another page for them, returns that one.
        """
        node, end = self._nodes[slot], len(ids) // self.page_size
        known = self.cache.known_pages(node, self._ids_of(ids, node.end, end)) if node.end < end else ids[:0]
        return int(known[-1] if len(known) == end - node.end > 0 else self.rows.pages(slot)[end - 1])

    def _pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _pages_of(self, lens: Ints) -> Ints:
        """Returns how many pages rows of these lengths need, [R]."""
        return lens if self.page_size == 1 else (lens + (self.page_size - 1)) // self.page_size

    def _make_room(self, num_pages: int) -> bool:
        """Evicts until as many pages are free in every space. Evicts nothing if that is impossible in any space."""
        for space in self.followers:
            if num_pages > space.num_available:
                return False
        if num_pages > self.allocator.num_free:
            first = self.first
            if num_pages > first.num_available and not (self.cache.lower.settle() and num_pages <= first.num_available):
                return False
            first.make_room(num_pages)
        for space in self.followers:
            space.make_room(num_pages)
        return True

    def _make_room_behind(self, slots: Slots, num_pages: int) -> bool:
        """Makes room after there was not enough: first frees the pages of these rows that they no longer see."""
        for space in self.followers:
            space.let_go(slots)
        return bool(self.followers) and self._make_room(num_pages)

    def _ids_of(self, ids: Ints, start: int, end: int) -> Ints:
        """Returns the tokens of pages start … end - 1."""
        return ids[start * self.page_size : end * self.page_size]
