"""Groups of ranks that compute one thing together: built once, passed down, never global.

Layers hold a group and ask it for rank, size and sums; `SoloGroup` is the group of one, in which nothing is exchanged.
Which groups there are, and where this process stands in them, a `RankContext` says (`ranks.py`).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mysglang.srt.distributed.ranks import Place


class Group(Protocol):
    """Ranks 0 … size - 1. Every member calls the same verbs in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks. Consumes x."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks one after another along the last dimension."""
        ...


class SoloGroup:
    """The null group: one rank, whose part is the whole."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


SOLO = SoloGroup()


def group_of(place: Place) -> Group:
    """The group in which this process has that place."""
    assert place.size == 1, "options for several ranks are refused"
    return SOLO
