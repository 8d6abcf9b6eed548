"""PrefixMatch: a cached prefix that was found, on the device and below it."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.mem_cache.tree_node import TreeNode


@dataclass(frozen=True, slots=True)
class HostMatch:
    """A prefix found on the host, longer than the one on the device."""

    num_tokens: int
    """From the beginning, a multiple of the page size."""
    num_pages: int
    node: TreeNode
    """Where it ended in the host's tree."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A cached prefix that was found. Nothing is locked: whatever evicts may shorten it; `PrefixCache.holds` tells."""

    num_tokens: int
    """A multiple of the page size, and what is in `tail`."""
    num_pages: int
    """Whole ones."""
    extra_key: str
    node: TreeNode | None
    """Where the prefix ended when it was found; the cache's business."""
    host: HostMatch | None = None
    """How it goes on in the memory of the host; None: it does not."""
    known: int = 0
    """Tokens whose pages are cached, where a row cannot go on from the last of them; 0: it can."""
    tail: TreeNode | None = None
    """A page behind these that is filled in part, for one row to take over; None: there is none."""

    @property
    def reach(self) -> int:
        """Tokens that need not be computed: those found, and those that can be loaded back."""
        return self.num_tokens if self.host is None else self.host.num_tokens
