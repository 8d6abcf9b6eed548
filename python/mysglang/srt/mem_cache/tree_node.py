"""TreeNode: a run of cached pages. An opaque handle for a row that uses it; only the tree knows its content.

PrefixMatch: a cached prefix that was found, on the device and below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mysglang.srt.forward.worker_batch import Ints

REMOVED = -1
NEVER_URGENT = -(1 << 62)
NO_PAGES: Ints = np.zeros(0, np.int32)
NO_TOKEN = -1
"""Fills up the key of a page that is not full. No prompt has this token."""


class TreeNode:
    """A run of pages below `parent`. Outside of the tree it is an opaque handle: only `end` is of interest.

    A node keeps its identity when it is split: it becomes the lower part, so what was locked stays locked.
    """

    __slots__ = (
        "children",
        "condemned",
        "confirmed",
        "created",
        "end",
        "key",
        "last_access",
        "lock_ref",
        "parent",
        "queued",
        "serial",
        "urgency",
        "uses",
        "value",
    )

    def __init__(self, parent: TreeNode | None, key: Ints, value: Ints, serial: int) -> None:
        self.parent = parent
        self.key = key
        """Token ids, len(value) * page_size of them; never written to."""
        self.value = value
        """Page numbers."""
        self.end: int = len(value) + (parent.end if parent else 0)
        """Pages from the root to the end of this node; REMOVED once evicted."""
        self.serial = serial
        self.children: dict[int | bytes, TreeNode] = {}
        self.lock_ref = 0
        """Number of rows that use this node or a node below it."""
        self.last_access = 0
        self.created = 0
        self.uses = 0
        """Number of rows that used this node or a node below it, and left."""
        self.urgency = NEVER_URGENT
        """The greatest of these rows."""
        self.queued = False
        """True if an entry for this node is in the eviction queue."""
        self.confirmed = False
        """True if a row that read all of it, and of the path above, had a finite result. This then holds for the whole
        path.
        """
        self.condemned = False
        """True if it can no longer be matched, because it may hold numbers that are not finite. This then holds for all
        nodes below too.
        """

    @property
    def is_tail(self) -> bool:
        """True if this is a partly filled page: only the tokens before the first NO_TOKEN are in it."""
        return self.parent is not None and int(self.key[-1]) == NO_TOKEN

    def used(self, urgency: int) -> None:
        """Counts a use. Called when a row with this urgency, which used the whole node, leaves."""
        self.uses += 1
        if urgency > self.urgency:
            self.urgency = urgency


class NamespaceRoot(TreeNode):
    """The empty node above all prefixes of a namespace. It is removed when it has no children and no row uses it."""

    __slots__ = ("name",)

    def __init__(self, name: str, serial: int) -> None:
        super().__init__(None, NO_PAGES, NO_PAGES, serial)
        self.name = name


def tail_key(ids: Ints, page_size: int) -> Ints:
    """Returns the key of a partly filled page with these tokens."""
    key: Ints = np.full(page_size, NO_TOKEN, np.int32)
    key[: len(ids)] = ids
    return key


def path_serials(node: TreeNode) -> tuple[int, ...]:
    """Returns the serials of the nodes from the root to `node`."""
    serials = [node.serial]
    while node.parent is not None:
        node = node.parent
        serials.append(node.serial)
    return tuple(reversed(serials))


def shared_end(node: TreeNode) -> int:
    """Returns how many pages of the path to `node`, counted from the root, have more than one lock."""
    while node.parent is not None and node.lock_ref <= 1:
        node = node.parent
    return node.end


def namespace_of(node: TreeNode) -> str:
    """Returns the name of a node's namespace, also for a node that was evicted."""
    while node.parent is not None:
        node = node.parent
    assert isinstance(node, NamespaceRoot)
    return node.name


def shortened(array: Ints, size: int) -> Ints:
    """Returns the first entries of an array: a view, or a copy once less than half of the memory behind it is in
    use.
    """
    view = array[:size]
    behind = array.base if isinstance(array.base, np.ndarray) else array
    return view.copy() if 2 * size < behind.size else view


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
        """Number of tokens that need not be computed: those found, and those that can be loaded back."""
        return self.num_tokens if self.host is None else self.host.num_tokens
