"""Which cached prefix goes first when pages are wanted. Each policy is one key function: the smallest key goes first.

A key must never become smaller while its node lives: the tree's queue corrects outdated keys only when they come up.
Ties are broken by age, so every rank evicts alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias


class Evictable(Protocol):
    """What a policy may look at."""

    @property
    def last_access(self) -> int:
        """Logical time of the last match, insert or unlock that touched the node."""
        ...


EvictPolicy: TypeAlias = Callable[[Evictable], int]

EvictPolicyName = Literal["lru"]


def lru(node: Evictable) -> int:
    """Least recently used first."""
    return node.last_access


EVICT_POLICIES: dict[EvictPolicyName, EvictPolicy] = {"lru": lru}
