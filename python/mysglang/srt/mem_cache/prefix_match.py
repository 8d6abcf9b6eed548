"""PrefixMatch: a cached prefix that was found, on the device and below it."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.mem_cache.tree_node import TreeNode


@dataclass(frozen=True, slots=True)
class HostMatch:
    """A prefix found on the host, longer than the one on the device."""

    num_tokens: int
    """Number of tokens from the beginning, a multiple of the page size."""
    num_pages: int
    node: TreeNode
    """The last node in the host's tree."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A cached prefix that was found. Nothing is locked: an eviction may shorten it, which `PrefixCache.holds`
    reports.
    """

    num_tokens: int
    """A multiple of the page size, and what is in `tail`."""
    num_pages: int
    """Number of whole pages."""
    extra_key: str
    node: TreeNode | None
    """The last node of the prefix when it was found. Only the cache uses it."""
    host: HostMatch | None = None
    """How it goes on in the memory of the host; None: it does not."""
    known: int = 0
    """Tokens whose pages are cached, if a row cannot go on from the last of them; 0 if it can."""
    tail: TreeNode | None = None
    """A page behind these that is filled in part, for one row to take over; None: there is none."""

    @property
    def reach(self) -> int:
        """Tokens that need not be computed: those found, and those that can be loaded back."""
        return self.num_tokens if self.host is None else self.host.num_tokens
