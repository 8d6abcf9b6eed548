"""ChunkCache: the prefix cache that shares nothing. What a row computed is freed when the row goes."""

from __future__ import annotations

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.prefix_cache import CacheSize, PrefixCache
from mysglang.srt.mem_cache.tree_node import NO_PAGES, NamespaceRoot, PrefixMatch, TreeNode
from mysglang.srt.mem_cache.tree_view import TreeView


class ChunkCache(PrefixCache):
    """A null object for RadixCache: it caches nothing, and every row uses the same empty node."""

    shares = False

    def __init__(self, allocator: PageAllocator) -> None:
        self.allocator = allocator
        self._nowhere = NamespaceRoot("", 0)

    @property
    def evictable_pages(self) -> int:
        return 0

    @property
    def shared_nodes(self) -> int:
        return 0

    @property
    def clock(self) -> int:
        return 0

    def size(self) -> CacheSize:
        return CacheSize(0, 0, 0, 0)

    def view(self, preview_tokens: int) -> TreeView:
        return TreeView(enabled=False, nodes=[])

    def match_prefix(self, ids: Ints, extra_key: str) -> PrefixMatch:
        return PrefixMatch(0, 0, extra_key, None)

    def holds(self, match: PrefixMatch) -> bool:
        return True

    def unlocked_pages(self, match: PrefixMatch) -> int:
        return 0

    def inc_lock_ref(self, match: PrefixMatch) -> TreeNode:
        return self._nowhere

    def dec_lock_ref(self, node: TreeNode, urgency: int = 0) -> None:
        pass

    def confirm(self, node: TreeNode) -> None:
        pass

    def condemn(self, node: TreeNode) -> None:
        pass

    def path_pages(self, node: TreeNode) -> Ints:
        return NO_PAGES

    def shared_pages(self, node: TreeNode) -> int:
        return 0

    def match_pages(self, match: PrefixMatch) -> Ints:
        return NO_PAGES

    def known_pages(self, node: TreeNode, ids: Ints) -> Ints:
        return NO_PAGES

    def path(self, match: PrefixMatch) -> tuple[int, ...]:
        return ()

    def append(self, node: TreeNode, ids: Ints, pages: Ints) -> TreeNode:
        return node

    def insert(self, node: TreeNode, ids: Ints, pages: Ints, urgency: int = 0) -> None:
        self.allocator.free(pages)

    def with_tail(self, match: PrefixMatch, ids: Ints) -> PrefixMatch:
        return match

    def take_tail(self, match: PrefixMatch) -> Ints:
        return NO_PAGES

    def insert_tail(self, node: TreeNode, ids: Ints, page: Ints, urgency: int = 0) -> None:
        self.allocator.free(page)

    def evict(self, num_pages: int) -> None:
        pass

    def check(self, standing: list[TreeNode]) -> Ints:
        return NO_PAGES
