"""LowerTier: what a prefix cache does about copies of its pages elsewhere. NoLowerTier: there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.tree_node import PrefixMatch, TreeNode


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Numbers of tokens that were copied or dropped, since the start."""

    written: int = 0
    """Copied to the host."""
    loaded: int = 0
    """Copied back to the device."""
    dropped: int = 0
    """Tokens that should have been written, and found no room."""
    stored: int = 0
    """Written to storage."""
    fetched: int = 0
    """Read from there."""


class Arrival(Protocol):
    """A prefix that is being fetched from storage."""

    @property
    def done(self) -> bool:
        """True if nothing more will arrive."""
        ...

    @property
    def deadline(self) -> float:
        """Time (time.monotonic()) until which a request should wait for it, under the policy `timeout`."""
        ...


class LowerTier(Protocol):
    """Plans copies to lower tiers, and makes them happen between the right steps."""

    @property
    def busy(self) -> bool:
        """True if copies are planned or on their way. They may hold locks although no request runs."""
        ...

    @property
    def counts(self) -> TierCounts: ...

    def left(self, node: TreeNode, ids: Ints) -> None:
        """Notes that a row has left which stood on `node`. Its whole pages, those of `ids`, are cached as far as they
        are kept.
        """
        ...

    def load_back(self, match: PrefixMatch, pages: Ints) -> None:
        """Plans to copy the part of a match that only the host has to these pages, before the next step.

        The match is locked, and its holder owns the pages.
        """
        ...

    def fetch(self, ids: Ints, extra_key: str) -> Arrival | None:
        """Searches the storage for the rest of a prompt that the tiers above do not have; None if that is not
        worthwhile.
        """
        ...

    def settle(self) -> bool:
        """Waits until no page is locked for a copy. Returns True if any was."""
        ...

    def launch(self) -> None:
        """Starts the planned copies. Called before each step is launched, and when there is none."""
        ...

    def look(self) -> Sequence[Any]:
        """Returns news about copied, stored and found pages: see `utils/outside.py`."""
        ...

    def learn(self, news: Any) -> None: ...

    def weights_changed(self) -> None:
        """Notes that the weights changed: pages that are computed from now on differ from those that may be stored
        elsewhere.
        """
        ...


class NoLowerTier:
    """A null object for a cache without host memory or storage below it."""

    busy = False
    counts = TierCounts()

    def left(self, node: TreeNode, ids: Ints) -> None:
        pass

    def load_back(self, match: PrefixMatch, pages: Ints) -> None:
        raise AssertionError("nothing is found below the device")

    def fetch(self, ids: Ints, extra_key: str) -> Arrival | None:
        return None

    def settle(self) -> bool:
        return False

    def launch(self) -> None:
        pass

    def look(self) -> Sequence[Any]:
        return ()

    def learn(self, news: Any) -> None:
        raise AssertionError("nothing happens below the device")

    def weights_changed(self) -> None:
        pass


NO_LOWER_TIER = NoLowerTier()
