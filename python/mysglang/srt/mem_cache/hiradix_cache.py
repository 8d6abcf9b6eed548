"""HiRadixCache: a RadixCache with a tier below it, on the host. What was evicted here may be found there still; then it
is copied back instead of being computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.evict_policy import EvictPolicy, lru
from mysglang.srt.mem_cache.host_tier import HostNews, HostTier
from mysglang.srt.mem_cache.kv_events import PageListener
from mysglang.srt.mem_cache.lower_tier import Arrival, TierCounts
from mysglang.srt.mem_cache.prefix_cache import CacheSize
from mysglang.srt.mem_cache.radix_cache import RadixCache
from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.storage.interface import NoStorage, Storage, StorageNews
from mysglang.srt.mem_cache.tree_node import PrefixMatch, TreeNode, namespace_of

WritePolicyName = Literal["write_through", "write_through_selective", "write_back"]

WRITTEN_AFTER: dict[WritePolicyName, int | None] = {
    "write_through": 1,
    "write_through_selective": 2,
    "write_back": None,
}
"""When so many rows that had a prefix have left, it is written out; None: not before it is evicted."""


class HostBelow:
    """Decides which pages are copied between device and host, and when (a `LowerTier`). A lock on a node of the device
    keeps its pages while they are copied.

    `host` knows which pages it has, and where.
    """

    def __init__(self, tree: RadixTree, host: HostTier, storage: Storage, write_policy: WritePolicyName) -> None:
        self._tree = tree
        self._host = host
        self._storage = storage
        self._learners: dict[type, Callable[[Any], None]] = {HostNews: host.learn, StorageNews: storage.learn}
        self._written_after = WRITTEN_AFTER[write_policy]
        self.writes_back = self._written_after is None
        self.locked: list[TreeNode] = []
        """Nodes of the device whose copies are not complete; a node may occur several times."""

    @property
    def busy(self) -> bool:
        return self._host.busy

    @property
    def counts(self) -> TierCounts:
        storage = self._storage
        return replace(self._host.counts, stored=storage.stored, fetched=storage.fetched)

    def left(self, node: TreeNode, ids: Ints) -> None:
        if self._written_after is None:
            return
        extra_key = namespace_of(node)
        found, count = self._tree.match_prefix(ids, extra_key)
        while found is not None and found.parent is not None and found.uses < self._written_after:
            found = found.parent
            count = min(count, found.end)
        if found is None or count == 0:
            return
        pages = self._tree.path_pages(found)[:count]
        release = partial(self._copied, found)
        if self._host.write(ids[: count * self._tree.page_size], pages, extra_key, release, urgent=False):
            self._tree.inc_lock_ref(found)
            self.locked.append(found)

    def write_back(self, node: TreeNode) -> None:
        """Writes to the host what it lacks of the path to a node that is about to be evicted."""
        if not node.condemned and not node.is_tail:
            ids, pages = self._tree.path_ids(node), self._tree.path_pages(node)
            self._host.write(ids, pages, namespace_of(node), self._evicted, urgent=True)

    def load_back(self, match: PrefixMatch, pages: Ints) -> None:
        assert match.host is not None
        self._host.load(match.host, pages)

    def fetch(self, ids: Ints, extra_key: str) -> Arrival | None:
        known = max(tree.match_prefix(ids, extra_key)[1] for tree in (self._tree, self._host.tree))
        return self._storage.fetch(ids, extra_key, known * self._tree.page_size)

    def settle(self) -> bool:
        if not self.locked:
            return False
        self._host.settle()
        return True

    def launch(self) -> None:
        self._host.launch()

    def look(self) -> Sequence[HostNews | StorageNews]:
        return [*self._host.look(), *self._storage.look()]

    def learn(self, news: HostNews | StorageNews) -> None:
        self._learners[type(news)](news)

    def weights_changed(self) -> None:
        self._storage.weights_changed()

    def reset(self) -> None:
        """Forgets all pages that are not on the device. Afterwards no page of the device is locked for copies."""
        self._storage.reset()
        self._host.reset()

    def check(self) -> None:
        """Checks all invariants, for tests."""
        self._host.check(self._storage.locked, self._storage.taken)

    def _copied(self, node: TreeNode, there: TreeNode | None) -> None:
        self.locked.remove(node)
        self._tree.unpin(node)
        self._evicted(there)

    def _evicted(self, there: TreeNode | None) -> None:
        """Stores evicted nodes from the host in the storage. Called after nodes were evicted; none of them is locked
        here.
        """
        if there is not None:
            self._storage.store(there)


class HiRadixCache(RadixCache):
    """A radix cache with a host tier. Matches extend as far as either tier has the prefix."""

    def __init__(
        self,
        allocator: PageAllocator,
        host: HostTier,
        policy: EvictPolicy = lru,
        listener: PageListener | None = None,
        write_policy: WritePolicyName = "write_through",
        storage: Storage | None = None,
    ) -> None:
        super().__init__(allocator, policy, listener)
        self.host = host
        self.lower = self._below = HostBelow(self.tree, host, storage or NoStorage(), write_policy)

    def size(self) -> CacheSize:
        allocator, tree = self.host.allocator, self.host.tree
        return replace(
            super().size(),
            host_pages=allocator.num_pages,
            host_free=allocator.num_free,
            host_cached=tree.evictable_pages + tree.protected_pages,
            host_locked_nodes=tree.locked_nodes,
        )

    def match_prefix(self, ids: Ints, extra_key: str) -> PrefixMatch:
        match = super().match_prefix(ids, extra_key)
        found = self.host.match(ids, extra_key, match.num_pages)
        return match if found is None else replace(match, host=found)

    def holds(self, match: PrefixMatch) -> bool:
        return super().holds(match) and (match.host is None or self.host.holds(match.host))

    def inc_lock_ref(self, match: PrefixMatch) -> TreeNode:
        node = super().inc_lock_ref(match)
        if match.host is not None:
            self.host.hold(match.host)
        return node

    def evict(self, num_pages: int) -> None:
        below = self._below
        pages = self.tree.evict(num_pages, below.write_back if below.writes_back else None)
        self._listener.removed(pages)
        self.allocator.free(pages)

    def condemn(self, node: TreeNode) -> None:
        top = self.tree.doubtful(node)
        if top is not None and top.parent is not None:
            self.host.condemn(self.tree.path_ids(node), top.parent.end, namespace_of(node))
        super().condemn(node)

    def reset(self) -> None:
        self._below.reset()
        self._listener.cleared()
        self.allocator.free(self.tree.evict(self.tree.evictable_pages))
        assert self.tree.num_nodes == 0, "reset while rows are open"

    def check(self, standing: list[TreeNode]) -> Ints:
        self._below.check()
        return super().check([*standing, *self._below.locked])
