"""RadixCache: the radix tree bound to the page allocator. It knows which pages to free, but not which requests use
them.
"""

from __future__ import annotations

from dataclasses import replace

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.evict_policy import EvictPolicy, lru
from mysglang.srt.mem_cache.kv_events import NoListener, PageListener
from mysglang.srt.mem_cache.prefix_cache import CacheSize, PrefixCache
from mysglang.srt.mem_cache.radix_tree import RadixTree
from mysglang.srt.mem_cache.tree_node import (
    NO_PAGES,
    REMOVED,
    PrefixMatch,
    TreeNode,
    namespace_of,
    path_serials,
    shared_end,
)
from mysglang.srt.mem_cache.tree_view import TreeView, tree_view


class RadixCache(PrefixCache):
    """Keeps every whole page of every prefix that was computed, until its memory is needed."""

    def __init__(
        self, allocator: PageAllocator, policy: EvictPolicy = lru, listener: PageListener | None = None
    ) -> None:
        self.allocator = allocator
        self._listener = NoListener() if listener is None else listener
        self.tree = RadixTree(allocator.page_size, policy)

    @property
    def evictable_pages(self) -> int:
        return self.tree.evictable_pages

    @property
    def shared_nodes(self) -> int:
        return self.tree.shared_nodes

    @property
    def clock(self) -> int:
        return self.tree.clock

    def size(self) -> CacheSize:
        tree = self.tree
        return CacheSize(tree.evictable_pages, tree.protected_pages, tree.num_nodes, tree.locked_nodes)

    def view(self, preview_tokens: int) -> TreeView:
        return tree_view(self.tree, preview_tokens)

    def match_prefix(self, ids: Ints, extra_key: str) -> PrefixMatch:
        node, num_pages = self.tree.match_prefix(ids, extra_key)
        return PrefixMatch(num_pages * self.allocator.page_size, num_pages, extra_key, node)

    def holds(self, match: PrefixMatch) -> bool:
        tail = match.tail
        if tail is not None and (tail.end == REMOVED or tail.condemned):
            return False
        return match.num_pages == 0 or self.tree.node_at(match.node, match.num_pages) is not None

    def unlocked_pages(self, match: PrefixMatch) -> int:
        tail = int(match.tail is not None)
        if match.num_pages == 0:
            return tail
        return self.tree.unlocked_pages(self._node_of(match), match.num_pages) + tail

    def inc_lock_ref(self, match: PrefixMatch) -> TreeNode:
        if match.num_pages == 0:
            node = self.tree.namespace(match.extra_key)
        else:
            node = self.tree.split_at(self._node_of(match), match.num_pages)
        self.tree.inc_lock_ref(node)
        return node

    def dec_lock_ref(self, node: TreeNode, urgency: int = 0) -> None:
        self.tree.dec_lock_ref(node, urgency)

    def confirm(self, node: TreeNode) -> None:
        self.tree.confirm(node)

    def condemn(self, node: TreeNode) -> None:
        self._listener.removed(self.tree.condemn(node))

    def path_pages(self, node: TreeNode) -> Ints:
        return self.tree.path_pages(node)

    def shared_pages(self, node: TreeNode) -> int:
        return shared_end(node)

    def match_pages(self, match: PrefixMatch) -> Ints:
        if match.num_pages == 0:
            return NO_PAGES
        return self.tree.path_pages(self._node_of(match))[: match.num_pages]

    def known_pages(self, node: TreeNode, ids: Ints) -> Ints:
        return self.tree.pages_below(node, ids)

    def path(self, match: PrefixMatch) -> tuple[int, ...]:
        return () if match.num_pages == 0 else path_serials(self._node_of(match))

    def append(self, node: TreeNode, ids: Ints, pages: Ints) -> TreeNode:
        leaf = self.tree.append(node, ids, pages)
        if leaf is None:
            return node
        self._listener.stored(node, ids, pages, 0)
        return leaf

    def insert(self, node: TreeNode, ids: Ints, pages: Ints, urgency: int = 0) -> None:
        known = self.tree.insert(node, ids, pages, urgency)
        if known < len(pages):
            self._listener.stored(node, ids, pages, known)
        self.allocator.free(pages[:known])

    def with_tail(self, match: PrefixMatch, ids: Ints) -> PrefixMatch:
        rest = len(ids) - match.num_tokens
        ends_a_node = match.node is not None and match.node.end == match.num_pages
        if not ends_a_node or match.host is not None or not 0 < rest < self.allocator.page_size:
            return match
        assert match.node is not None
        tail = self.tree.tail_below(match.node, ids[match.num_tokens :])
        return match if tail is None else replace(match, num_tokens=len(ids), tail=tail)

    def take_tail(self, match: PrefixMatch) -> Ints:
        return NO_PAGES if match.tail is None else self.tree.take(match.tail)

    def insert_tail(self, node: TreeNode, ids: Ints, page: Ints, urgency: int = 0) -> None:
        # Not reported: events and tiers below handle whole pages only.
        if node.condemned or not self.tree.insert_tail(ids, namespace_of(node), page, urgency):
            self.allocator.free(page)

    def evict(self, num_pages: int) -> None:
        pages = self.tree.evict(num_pages)
        self._listener.removed(pages)
        self.allocator.free(pages)

    def reset(self) -> None:
        self._listener.cleared()
        super().reset()

    def check(self, standing: list[TreeNode]) -> Ints:
        return self.tree.check(standing)

    def _node_of(self, match: PrefixMatch) -> TreeNode:
        node = self.tree.node_at(match.node, match.num_pages)
        assert node is not None, "a stale match: match again after anything that may evict"
        return node
