"""PageListener: receives which pages can be matched, and which no longer can. NoListener ignores it."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.tree_node import TreeNode


class PageListener(Protocol):
    """Called at every change, in order. A split is not a change, because the pages stay the same."""

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        """The tokens `ids` go on from the end of `node`, in as many whole pages: all but the first `known` are new.

        These the cache had already as other pages than those given.
        """
        ...

    def removed(self, pages: Ints) -> None:
        """These pages can no longer be matched. Pages that were hidden before may be reported again."""
        ...

    def cleared(self) -> None:
        """No page can be matched any more."""
        ...


class NoListener:
    """The null listener."""

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        pass

    def removed(self, pages: Ints) -> None:
        pass

    def cleared(self) -> None:
        pass
