"""Storage: what a tier on the host has below itself. NoStorage: nothing."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.lower_tier import Arrival
from mysglang.srt.mem_cache.tree_node import TreeNode


class Storage(Protocol):
    """Implemented by `storage_tier.StorageTier`, which says what the verbs do."""

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

    def poll(self) -> None: ...

    def weights_changed(self) -> None: ...

    def reset(self) -> None: ...


class NoStorage:
    """The null object."""

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

    def poll(self) -> None:
        pass

    def weights_changed(self) -> None:
        pass

    def reset(self) -> None:
        pass
