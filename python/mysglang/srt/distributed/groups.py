"""Groups of ranks that compute one thing together: built once, passed down, never global.

Layers hold a group and ask it for rank, size and sums; `SoloGroup` is the group of one, in which nothing is exchanged.
Which groups there are, and where this process is in them, a `RankContext` says (`ranks.py`). `process_group.py`
exchanges the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """A group of ranks 0 … size - 1. Every member calls the same methods in the same order.

    Each method raises PeerLost if another member has ended.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def not_captured(self) -> str:
        """The reason why no step with these operations can be captured as a graph, as a clause; empty if it can be."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum over all ranks, with the same bits on each of them. Consumes x."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns the tensors of all ranks one after another along the last dimension."""
        ...

    def broadcast(self, x: Tensor) -> Tensor:
        """Sends rank 0's `x` to all ranks. The others give a tensor of the same shape and dtype, which is
        overwritten.
        """
        ...

    def smallest(self, values: Sequence[int]) -> list[int]:
        """Returns elementwise minimum of `values` over all ranks. Every rank gives the same number of values."""
        ...


class SoloGroup:
    """The null group: a single rank, which holds everything."""

    rank = 0
    size = 1
    not_captured = ""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        return x

    def smallest(self, values: Sequence[int]) -> list[int]:
        return list(values)


class OrderedGroup:
    """A group whose sums add the ranks' tensors in the order of the ranks, whatever their shape.

    Libraries choose the order by the number of values and by a value's place among them. With more than two ranks, a
    row's sum then depends on the rows beside it.
    """

    def __init__(self, inner: Group) -> None:
        self._inner = inner

    @property
    def rank(self) -> int:
        return self._inner.rank

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def not_captured(self) -> str:
        return self._inner.not_captured

    def all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self._inner.all_gather(x).chunk(self.size, dim=-1)
        total = first.contiguous()
        for part in others:
            total = total + part
        return total

    def all_gather(self, x: Tensor) -> Tensor:
        return self._inner.all_gather(x)

    def broadcast(self, x: Tensor) -> Tensor:
        return self._inner.broadcast(x)

    def smallest(self, values: Sequence[int]) -> list[int]:
        return self._inner.smallest(values)


SOLO = SoloGroup()
