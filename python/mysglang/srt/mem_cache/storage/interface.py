"""Storage: the tier below host memory in the hierarchical cache. NoStorage is its null object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.lower_tier import Arrival
from mysglang.srt.mem_cache.tree_node import TreeNode


class StorageNews(msgspec.Struct, frozen=True, tag=True):
    """Progress of one piece of work of the storage."""

    work: int
    """Its number: pieces of work are numbered in the order in which they were planned."""
    amount: int
    """Blocks that were stored or found, or pages that were filled so far."""
    over: bool
    """True if no further news follows for this request."""


class Storage(Protocol):
    """The storage below the host tier. `storage_tier.StorageTier` implements it, and describes the methods."""

    @property
    def stored(self) -> int: ...

    @property
    def fetched(self) -> int: ...

    @property
    def locked(self) -> list[TreeNode]: ...

    @property
    def taken(self) -> list[Ints]: ...

    def store(self, node: TreeNode) -> None: ...

    def fetch(self, ids: Ints, extra_key: str, num_tokens: int) -> Arrival | None: ...

    def look(self) -> Sequence[StorageNews]: ...

    def learn(self, news: StorageNews) -> None: ...

    def weights_changed(self) -> None: ...

    def reset(self) -> None: ...


class NoStorage:
    """A null object for a cache without storage."""

    stored = fetched = 0

    @property
    def locked(self) -> list[TreeNode]:
        return []

    @property
    def taken(self) -> list[Ints]:
        return []

    def store(self, node: TreeNode) -> None:
        pass

    def fetch(self, ids: Ints, extra_key: str, num_tokens: int) -> Arrival | None:
        return None

    def look(self) -> Sequence[StorageNews]:
        return ()

    def learn(self, news: StorageNews) -> None:
        raise AssertionError("there is no storage")

    def weights_changed(self) -> None:
        pass

    def reset(self) -> None:
        pass
