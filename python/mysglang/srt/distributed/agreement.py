"""AllRanks: what all ranks of a server decide together, whatever group or stage they are in.

Every rank calls the same verbs in the same order, between the same two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from mysglang.srt.errors import PeerRefused, RequestError


class Agrees(Protocol):
    """Ranks that can compute the minimum of their values: a `Group`, or the stages of a pipeline."""

    def smallest(self, values: Sequence[int]) -> list[int]: ...


class AllRanks:
    """The ranks of several groups, each of which crosses the others, as rows and columns do. Without groups: one rank
    alone, which agrees with itself.
    """

    def __init__(self, *groups: Agrees, size: int = 1) -> None:
        """`size`: the number of ranks."""
        self._groups = groups
        self.size = size

    def smallest(self, values: Sequence[int]) -> list[int]:
        """Returns, for each place in `values`, the least value of all ranks. Every rank gives as many values."""
        least = list(values)
        for group in self._groups:
            least = group.smallest(least)
        return least

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Runs the block on all ranks, or lets all of them fail: a RequestError on one rank keeps all from what
        follows.

        Raises that error where it came up, and PeerRefused on the other ranks.
        """
        try:
            yield
        except RequestError:
            self.smallest([0])
            raise
        if self.smallest([1]) == [0]:
            raise PeerRefused("Another rank of this server cannot do that, so none does.")


ONE_RANK = AllRanks()
