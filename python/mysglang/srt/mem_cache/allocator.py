"""PageAllocator: the free pages of a space. It knows no owner: the code that was given a page gives it back once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints


class Follower(Protocol):
    """A page space that follows the first one: it has at most one page for each page that is allocated there."""

    def give(self, pages: Ints) -> None:
        """Takes the news that these pages were allocated. The follower has space for their counterparts."""
        ...

    def drop(self, pages: Ints) -> None:
        """Takes the news that these pages are about to be freed, and their counterparts with them. No row reads any of
        them.
        """
        ...


class PageAllocator:
    """A stack of free page numbers, 1 … num_pages. Page 0 belongs to padding and is never given out.

    A fresh allocator gives pages in ascending order. The page freed last is given first.
    """

    __slots__ = ("_num_free", "_stack", "followers", "num_pages", "page_size")

    def __init__(self, num_pages: int, page_size: int) -> None:
        assert num_pages >= 0 and page_size >= 1
        self.num_pages = num_pages
        self.page_size = page_size
        """Tokens of a page."""
        self._stack: Ints = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._num_free = num_pages
        self.followers: Sequence[Follower] = ()

    @property
    def num_free(self) -> int:
        return self._num_free

    def alloc(self, count: int) -> Ints:
        """Takes `count` free pages and returns their numbers. The caller must have checked that this many are free."""
        bottom = self._num_free - count
        assert 0 <= bottom <= self._num_free, f"{count} pages asked for, {self._num_free} free"
        pages = self._stack[bottom : self._num_free][::-1].copy()
        self._num_free = bottom
        for follower in self.followers:
            follower.give(pages)
        return pages

    def free(self, pages: Ints) -> None:
        """Frees pages. They may be allocated again at once."""
        for follower in self.followers:
            follower.drop(pages)
        top = self._num_free + len(pages)
        assert top <= self.num_pages, "more pages freed than were given out"
        self._stack[self._num_free : top] = pages[::-1]
        self._num_free = top

    def free_pages(self) -> Ints:
        """Returns the free pages in undefined order, for checks."""
        return self._stack[: self._num_free].copy()
