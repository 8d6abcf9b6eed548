"""PageListener: who hears which pages can be matched, and which cannot any more. NoListener hears nothing."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.tree_node import TreeNode


class PageListener(Protocol):
    """Told of every change, in order. Splits are none: pages stay what they are."""

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        """The tokens `ids` go on from the end of `node`, in as many whole pages: all but the first `known` are new.

        These the cache had already as other pages than those given.
        """
        ...

    def removed(self, pages: Ints) -> None:
        """Nobody finds these any more. Of pages that were taken out of sight before, it may be told again."""
        ...

    def cleared(self) -> None:
        """Nobody finds anything any more."""
        ...


class NoListener:
    """Nobody wants to know."""

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        pass

    def removed(self, pages: Ints) -> None:
        pass

    def cleared(self) -> None:
        pass
