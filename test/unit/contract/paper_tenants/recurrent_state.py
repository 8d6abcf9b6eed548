"""Linear attention and Mamba: a layer keeps one state for each request, of a fixed size however long the request is.

    slot 3    state [heads, 128, 128], as of its last committed token
    tree      checkpoints of states at some borders of pages, which a prompt may begin from

A hit copies a checkpoint to the slot before the first chunk; a chunk that ends at a border copies the slot out again.
"""

from __future__ import annotations

import math

import numpy as np

from mysglang.srt.forward.page_space import SpaceShape
from mysglang.srt.forward.worker_batch import Ints, Longs, TableWrites
from mysglang.srt.mem_cache.prefix_match import PrefixMatch
from mysglang.srt.mem_cache.spaces import Space, SpaceRoom, SpaceState


class StateSpace:
    """`mem_cache.spaces.Space` of states: a page is a state, and a row has one."""

    def __init__(self, num_states: int) -> None:
        self._total = self._free = num_states
        self._checkpoints = 0

    @property
    def num_available(self) -> int:
        return self._free + self._checkpoints

    def make_room(self, num_pages: int) -> None:
        dropped = max(num_pages - self._free, 0)
        self._free, self._checkpoints = self._free + dropped, self._checkpoints - dropped

    def longest_row(self, chunk: int | None, context: int) -> int:
        return context if self._total else 0

    def state(self) -> SpaceState:
        """CANNOT: these are tokens. A state stands for as many as its row has."""
        return SpaceState(None, self._total, self._free, self._checkpoints, self._total - self.num_available)


class StateRoom:
    """`mem_cache.spaces.SpaceRoom`. Sayable: a row lacks nothing, or can run only when another one has ended."""

    def __init__(self, space: StateSpace) -> None:
        self._left = space.num_available

    def lacking(self, match: PrefixMatch, end: int, prompt: int, to_come: int) -> float:
        return 0.0 if self._left else math.inf

    def admit(self, end: int, prompt: int, to_come: int) -> None:
        self._left -= 1


def space(num_states: int) -> tuple[Space, SpaceRoom]:
    """CANNOT be given to a `KvManager`: of every shape behind the first it makes a space of a window."""
    states = StateSpace(num_states)
    return states, StateRoom(states)


def shape(num_states: int, max_context: int) -> SpaceShape:
    """A page that is as long as any row. CANNOT stand beside a space of shorter pages, see `opening`."""
    return SpaceShape(num_states, page_size=max_context)


def opening(slots: Longs, columns: Longs, pages: Ints, states: Ints) -> TableWrites:
    """Rows are opened: `pages` [N] of the rows' space at [slots, columns], and a state for each row.

    CANNOT: entry i is written in the table of every space, so a state has as many columns as the row has pages. CANNOT
    in any field of a step: copy a checkpoint to a slot before the forward pass, or a slot to a checkpoint after the
    chunk that ended at its border, in the order of steps.
    """
    return TableWrites(slots, columns, (pages, np.resize(states, len(pages))))


def match(found: PrefixMatch, checkpoint: int) -> int:
    """The furthest token from which all spaces can go on. Sayable with one number, which a space may shorten; CANNOT
    name the checkpoint that the match found, which must live until it is copied.
    """
    return min(found.num_tokens, checkpoint)
