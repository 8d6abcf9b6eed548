"""HostTier: the pages of a prefix cache in the host's memory. It plans copies; it touches no byte.

    device tree   system ─┬─ a ── b            what attention reads; evicted when memory is wanted
                          └─ c
    host tree     system ─┬─ a ── b ── d       copies of what was there, and of what is there still; evicted by itself
                          └─ c

The host's pages have a tree and an allocator of their own, so that a prefix may stand here, there, or in both, and be
split, trimmed and evicted on each side without a word to the other. Copies are collected while a step is planned and
handed to the worker together, before it (`launch`). A page that is written out can be found at once, and loaded back
once its copy is done; until then it is not evicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from mysglang.srt.forward.host_pages import NO_PAIRS, HostPages, PageCopies, PagePairs
from mysglang.srt.forward.worker_batch import Ints, Longs
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.evict_policy import EvictPolicy, lru
from mysglang.srt.mem_cache.kv_events import NoListener, PageListener
from mysglang.srt.mem_cache.lower_tier import TierCounts
from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.tree_node import HostMatch, TreeNode

LOAD_AT_LEAST = 10
"""Tokens: for fewer a copy is not worth its launch."""

Release = Callable[[TreeNode | None], None]
"""Unlocks the device's side of a copy, given the node of the host that it ends at; None: it was forgotten."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Pages on their way to the host, locked on both sides."""

    number: int
    """Number of the call of `HostPages.copy`."""
    node: TreeNode
    """In the host's tree."""
    release: Release


class HostNews(msgspec.Struct, frozen=True, tag=True):
    """News: calls of `HostPages.copy` that have written all their pages, counted from the first on."""

    done: int


class HostTier:
    """Which prefixes the host holds, and the copies to and from it."""

    allocator_type: type[PageAllocator] = PageAllocator

    def __init__(
        self, pages: HostPages, page_size: int, policy: EvictPolicy = lru, listener: PageListener | None = None
    ) -> None:
        self.page_size = page_size
        self.tree = RadixTree(page_size, policy)
        self.allocator = self.allocator_type(pages.num_pages, page_size)
        self._written = self._loaded = self._dropped = 0
        self._pages = pages
        self._listener = NoListener() if listener is None else listener
        self._ready_at: Longs = np.zeros(pages.num_pages + 1, dtype=np.int64)
        """Page -> number of the call of `copy` that writes it."""
        self._started = 0
        self._done = 0
        self._writing: deque[Writing] = deque()
        self._reading: list[TreeNode] = []
        """Nodes that rows are to be loaded from, locked from their opening to the launch."""
        self._writes: list[PagePairs] = []
        self._loads: list[PagePairs] = []
        self._urgent = False

    # Finding and loading

    def match(self, ids: Ints, extra_key: str, num_pages: int) -> HostMatch | None:
        """Returns the longest prefix of `ids` that can be loaded, if loading is worthwhile beside the `num_pages` of
        the device.
        """
        node, found = self.tree.match_prefix(ids, extra_key)
        if node is None or (found - num_pages) * self.page_size < LOAD_AT_LEAST:
            return None
        if self._writing or self._writes:
            found = self._ready(node, found)
            if (found - num_pages) * self.page_size < LOAD_AT_LEAST:
                return None
        return HostMatch(found * self.page_size, found, node)

    def holds(self, match: HostMatch) -> bool:
        """True if every page of the match is still there."""
        return self.tree.node_at(match.node, match.num_pages) is not None

    def hold(self, match: HostMatch) -> None:
        """Keeps a match, which is still held, until the next launch."""
        node = self.tree.node_at(match.node, match.num_pages)
        assert node is not None, "a stale match: match again after anything that may evict"
        self.tree.inc_lock_ref(node)
        self._reading.append(node)

    def load(self, match: HostMatch, pages: Ints) -> None:
        """Queues copies of the last pages of a match from the host to these device pages."""
        node = self.tree.node_at(match.node, match.num_pages)
        assert node is not None, "this match was not kept"
        source = self.tree.path_pages(node)[match.num_pages - len(pages) : match.num_pages]
        self._loads.append(PagePairs(pages.copy(), source))
        self._loaded += len(pages) * self.page_size

    # Writing

    def write(self, ids: Ints, pages: Ints, extra_key: str, release: Release, *, urgent: bool) -> bool:
        """Copies a prefix from these pages of the device, except pages that the host has already, and as far as there
        is room.

        ids: whole pages from the beginning on. If it returns True, `release` will be called when the copy is done;
        until then the pages stay as they are, or, if it is urgent, until the next step.
        """
        if self.tree.match_prefix(ids, extra_key)[1] == len(pages):
            return False
        node, known = self.lock(ids, extra_key)
        count = self._room(len(pages) - known)
        self._dropped += (len(pages) - known - count) * self.page_size
        if count == 0:
            self.tree.unpin(node)
            return False
        targets = self.allocator.alloc(count)
        end = known + count
        fresh = ids[known * self.page_size : end * self.page_size]
        leaf = self.tree.append(node, fresh, targets)
        assert leaf is not None, "what was not found is there"
        self._listener.stored(node, fresh, targets, 0)
        self._ready_at[targets] = self._started + 1
        self._writes.append(PagePairs(pages[known:end].copy(), targets))
        self._urgent |= urgent
        self._writing.append(Writing(self._started + 1, leaf, release))
        self._written += count * self.page_size
        return True

    # Pages that come from elsewhere

    def lock(self, ids: Ints, extra_key: str) -> tuple[TreeNode, int]:
        """Locks the pages of a prefix that the host has, until `unlock`. Returns the node with the last of these pages,
        and their number.
        """
        found, known = self.tree.match_prefix(ids, extra_key)
        node = self.tree.node_at(found, known) if known else self.tree.namespace(extra_key)
        assert node is not None
        if known:
            node = self.tree.split_at(node, known)
        self.tree.inc_lock_ref(node)
        return node, known

    def unlock(self, node: TreeNode) -> None:
        self.tree.unpin(node)

    def take(self, num_pages: int) -> Ints:
        """Returns up to `num_pages` free pages for the caller to fill."""
        return self.allocator.alloc(self._room(num_pages))

    def give_back(self, pages: Ints) -> None:
        """Frees pages that were taken, and did not become part of a prefix."""
        self.allocator.free(pages)

    def adopt(self, node: TreeNode, ids: Ints, pages: Ints) -> TreeNode:
        """Appends filled pages that were taken, with the tokens that follow a locked node. The lock moves to the node
        returned.
        """
        leaf = self.tree.append(node, ids, pages)
        if leaf is None:
            # Another request's copy of the same tokens arrived first.
            self.allocator.free(pages)
            return node
        self._listener.stored(node, ids, pages, 0)
        self._ready_at[pages] = 0
        return leaf

    def condemn(self, ids: Ints, num_pages: int, extra_key: str) -> None:
        """Makes the page after the first `num_pages` pages of this prefix, and everything below it, impossible to
        find.
        """
        node, found = self.tree.match_prefix(ids, extra_key)
        if found <= num_pages:
            return
        node = self.tree.node_at(node, num_pages + 1)
        assert node is not None
        if num_pages > node.end - len(node.value):
            self.tree.split_at(node, num_pages)
        self._listener.removed(self.tree.take_out(node))

    # The loop's part

    @property
    def counts(self) -> TierCounts:
        return TierCounts(self._written, self._loaded, self._dropped)

    @property
    def busy(self) -> bool:
        return bool(self._writing or self._loads)

    def launch(self) -> None:
        if self._writes or self._loads:
            self._copy(joined(self._loads))
            self._forget_loads()

    def look(self) -> Sequence[HostNews]:
        done = self._pages.done() if self._writing else self._done
        return [HostNews(done)] if done > self._done else []

    def learn(self, news: HostNews) -> None:
        self._done = max(self._done, news.done)
        while self._writing and self._writing[0].number <= self._done:
            self._end(self._writing.popleft())

    def settle(self) -> bool:
        """Copies the planned pages to the host, and waits for them. Returns True if there were any. Loads are launched
        later.
        """
        if not self._writing:
            return False
        if self._writes:
            self._copy(NO_PAIRS)
        self._pages.wait()
        # All pages are cleared, on every rank, so the ranks need no message about it.
        self.learn(HostNews(self._started))
        assert not self._writing, "waited for copies, and some are not done"
        return True

    def reset(self) -> None:
        """Forgets everything. Waits for copies in flight, and drops planned ones."""
        self._forget_loads()
        self._writes.clear()
        self._pages.wait()
        self._done = self._started
        for writing in self._writing:
            self.tree.unpin(writing.node)
            writing.release(None)
        self._writing.clear()
        self.allocator.free(self.tree.evict(self.tree.evictable_pages))
        assert self.tree.num_nodes == 0
        self._listener.cleared()

    # Checking

    def check(self, locked: list[TreeNode], taken: list[Ints]) -> None:
        """Checks all invariants, given what others have locked and taken; for tests."""
        owned = self.tree.check([*(writing.node for writing in self._writing), *self._reading, *locked])
        pages = np.concatenate([self.allocator.free_pages(), owned, *taken])
        owners = np.bincount(pages, minlength=self._pages.num_pages + 1)
        assert owners[0] == 0
        assert (owners[1:] == 1).all(), f"host pages without exactly one owner: {1 + np.flatnonzero(owners[1:] != 1)}"

    # Inside

    def _ready(self, node: TreeNode, num_pages: int) -> int:
        """Returns how many pages of a path, counted from its beginning, can be loaded."""
        late = self._ready_at[self.tree.path_pages(node)[:num_pages]] > self._done
        return int(late.argmax()) if late.any() else num_pages

    def _room(self, num_pages: int) -> int:
        """Evicts until so many pages are free, or as many as possible."""
        short = num_pages - self.allocator.num_free
        if short > 0:
            pages = self.tree.evict(short)
            self._listener.removed(pages)
            self.allocator.free(pages)
        return min(num_pages, self.allocator.num_free)

    def _end(self, writing: Writing) -> None:
        self.tree.unpin(writing.node)
        writing.release(writing.node)

    def _copy(self, load: PagePairs) -> None:
        self._pages.copy(PageCopies(write=joined(self._writes), urgent=self._urgent, load=load))
        self._started += 1
        self._writes.clear()
        self._urgent = False

    def _forget_loads(self) -> None:
        for node in self._reading:
            self.tree.dec_lock_ref(node)
        self._reading.clear()
        self._loads.clear()


def joined(pairs: list[PagePairs]) -> PagePairs:
    """Returns all arrays as one, in order."""
    if len(pairs) < 2:
        return pairs[0] if pairs else NO_PAIRS
    return PagePairs(np.concatenate([each.device for each in pairs]), np.concatenate([each.host for each in pairs]))
