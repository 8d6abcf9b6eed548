"""PrefixCache: what a cache of prefixes must do, whether it shares (RadixCache) or not (ChunkCache).

Ownership: a page belongs to the free list, to the cache, or to one row. `append` and `insert` hand pages over from the
row to the cache; a row that stands on a node reads the pages on the path above it, but does not own them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.lower_tier import NO_LOWER_TIER, LowerTier
from mysglang.srt.mem_cache.tree_node import PrefixMatch, TreeNode
from mysglang.srt.mem_cache.tree_view import TreeView


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of a cache, in pages and nodes."""

    evictable_pages: int
    """Pages that no row uses."""
    protected_pages: int
    num_nodes: int
    locked_nodes: int
    host_pages: int = 0
    """Pages of the host's memory, where it is used."""
    host_free: int = 0
    host_cached: int = 0
    """Pages of prefixes there. Those that are neither are being filled from storage."""
    host_locked_nodes: int = 0
    """Nodes of the host tier that copies or storage still use."""


class PrefixCache(ABC):
    """Maps tokens to the pages that hold their keys and values."""

    shares: bool = True
    """True if pages of a row are kept for other rows."""
    lower: LowerTier = NO_LOWER_TIER
    """The tier that holds copies of pages."""

    @property
    @abstractmethod
    def evictable_pages(self) -> int:
        """Number of pages that `evict` could free now. Reading it costs nothing."""

    @property
    @abstractmethod
    def shared_nodes(self) -> int:
        """Number of nodes that more than one row uses. Reading it costs nothing."""

    @property
    @abstractmethod
    def clock(self) -> int:
        """Number of operations so far; it serves as the time of last use. Reading it costs nothing."""

    @abstractmethod
    def size(self) -> CacheSize: ...

    @abstractmethod
    def view(self, preview_tokens: int) -> TreeView:
        """Returns a bounded picture of the cached prefixes. Takes about a millisecond, whatever the size of the cache.

        `preview_tokens`: how many token ids to copy of each node whose requests brought no salt.
        """

    @abstractmethod
    def match_prefix(self, ids: Ints, extra_key: str) -> PrefixMatch:
        """Returns the longest cached prefix of `ids` in the namespace `extra_key`, in whole pages."""

    @abstractmethod
    def holds(self, match: PrefixMatch) -> bool:
        """True if every page of the match is still cached."""

    @abstractmethod
    def unlocked_pages(self, match: PrefixMatch) -> int:
        """Returns how many pages of a match, still held, are evictable now."""

    @abstractmethod
    def inc_lock_ref(self, match: PrefixMatch) -> TreeNode:
        """Locks a match that is still held, for one row. Returns the node at its end. The row now "stands on"
        this node: it uses the `node.end` pages from the root to the end of the node.
        """

    @abstractmethod
    def dec_lock_ref(self, node: TreeNode, urgency: int = 0) -> None:
        """Removes a row's lock on `node`. The row's `urgency` may decide what the cache keeps."""

    @abstractmethod
    def confirm(self, node: TreeNode) -> None:
        """Marks the path to `node` as sound, since a row that read it had a finite result."""

    @abstractmethod
    def condemn(self, node: TreeNode) -> None:
        """Removes from matching the unconfirmed part of the path to `node`, and everything that was computed from it.

        Called when a row that read the path had a result that is not finite. Rows that use it go on reading it, and
        their pages stay theirs.
        """

    @abstractmethod
    def path_pages(self, node: TreeNode) -> Ints:
        """Returns the `node.end` pages above the end of a locked node, first page of the prompt first."""

    @abstractmethod
    def shared_pages(self, node: TreeNode) -> int:
        """Returns how many of these pages, counted from the first, another row uses too."""

    @abstractmethod
    def match_pages(self, match: PrefixMatch) -> Ints:
        """Returns the pages of a match, still held, first page of the prompt first."""

    @abstractmethod
    def known_pages(self, node: TreeNode, ids: Ints) -> Ints:
        """Returns the cached pages for the first of these tokens, which follow the end of `node`."""

    @abstractmethod
    def path(self, match: PrefixMatch) -> tuple[int, ...]:
        """Returns the names of the nodes from the root to the end of a match. The match must still be held."""

    @abstractmethod
    def append(self, node: TreeNode, ids: Ints, pages: Ints) -> TreeNode:
        """Takes over pages with the tokens `ids`, which a row that stands on `node` has added. Returns the node on
        which the row stands afterwards.

        If the cache does not take the pages, this is `node` itself, and the row keeps the pages as its own.
        """

    @abstractmethod
    def insert(self, node: TreeNode, ids: Ints, pages: Ints, urgency: int = 0) -> None:
        """Takes over the pages of a row that is about to leave `node` for good. Pages that are not kept are freed."""

    @abstractmethod
    def with_tail(self, match: PrefixMatch, ids: Ints) -> PrefixMatch:
        """Returns a match, still held, that reaches to the end of `ids` if a page that `insert_tail` took ends there;
        else the same match.
        """

    @abstractmethod
    def take_tail(self, match: PrefixMatch) -> Ints:
        """Moves the partly filled page after the match's full pages from the cache to a row. Returns [1], or [0] if the
        match has none.
        """

    @abstractmethod
    def insert_tail(self, node: TreeNode, ids: Ints, page: Ints, urgency: int = 0) -> None:
        """Takes over a partly filled page, which holds the end of `ids`, all tokens of the row. Called after `insert`.
        A page that is not kept is freed. page: [1].
        """

    @abstractmethod
    def evict(self, num_pages: int) -> None:
        """Frees that many pages, or all evictable ones if these are fewer."""

    @abstractmethod
    def check(self, standing: list[TreeNode]) -> Ints:
        """Raise AssertionError for a contradiction. `standing`: nodes that open rows use. Returns the pages it owns."""

    def reset(self) -> None:
        """Evicts everything. No row may use the cache."""
        self.evict(self.evictable_pages)
        assert self.size().num_nodes == 0, "reset while rows are open"


MakePrefixCache: TypeAlias = Callable[[PageAllocator], PrefixCache]
