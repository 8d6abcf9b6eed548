"""Which cached prefix goes first when pages are wanted. Each policy is one key function: the smallest key goes first.

A key must never become smaller while its node lives: the tree's queue corrects outdated keys only when they come up.
(So there is no `mru`.) Ties are broken by age, so every rank evicts alike; time is counted in operations, and no policy
reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias


class Evictable(Protocol):
    """Attributes of a node that a policy may use."""

    @property
    def last_access(self) -> int:
        """Logical time of the last match, insert or unlock that touched the node."""
        ...

    @property
    def created(self) -> int:
        """Logical time at which its pages were cached."""
        ...

    @property
    def uses(self) -> int:
        """Number of rows that used the node to its end, including the one that computed it."""
        ...

    @property
    def urgency(self) -> int:
        """Largest urgency of the requests that used it."""
        ...


EvictPolicy: TypeAlias = Callable[[Evictable], int]

EvictPolicyName = Literal["lru", "lfu", "fifo", "filo", "slru", "priority"]

LATER = 1 << 48
"""Larger than any logical time: a key's part that comes before the last access is multiplied by it."""

PROTECTED_USES = 2
"""Number of uses from which slru protects a prefix as one that is used repeatedly."""


def lru(node: Evictable) -> int:
    """Orders nodes by last use: the least recently used one is evicted first."""
    return node.last_access


def lfu(node: Evictable) -> int:
    """Evicts the least often used entry first; among equals, the least recently used."""
    return node.uses * LATER + node.last_access


def fifo(node: Evictable) -> int:
    """Orders nodes by creation: first cached, first evicted."""
    return node.created


def filo(node: Evictable) -> int:
    """Orders nodes by reverse creation: last cached, first evicted, so the oldest prefixes stay."""
    return -node.created


def slru(node: Evictable) -> int:
    """Orders nodes as segmented LRU: nodes that were used once first, then nodes that were used again; within each
    group the least recently used first.
    """
    return (node.uses >= PROTECTED_USES) * LATER + node.last_access


def priority(node: Evictable) -> int:
    """Orders nodes by urgency: nodes that only less urgent requests have used first; among equals, the least recently
    used first.
    """
    return node.urgency * LATER + node.last_access


EVICT_POLICIES: dict[EvictPolicyName, EvictPolicy] = {
    "lru": lru,
    "lfu": lfu,
    "fifo": fifo,
    "filo": filo,
    "slru": slru,
    "priority": priority,
}
