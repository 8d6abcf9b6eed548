"""StateSpace: the states of a model with layers that keep one of a fixed size for each request.

    rows          slot 0 ─ state 7     slot 1 ─ state 2                      a state for each open row
    checkpoints   behind page 40 ─ state 5     behind page 43 ─ state 0      of prompts, for rows that begin later
    free          states 1 3 4 6

A checkpoint is the state after the last token of a page, so it stands for the whole prefix that ends there. A row can
go on from where the prefix cache has the pages and a checkpoint after the last of them.

    written   by the step that computes the tokens before it; rows find it from the next step on
    read      copied to the row's state before the first step of the row
    evicted   the least recently used first, which leaves the pages where they are; or with its page, when that is freed

This file knows no tree and no device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Protocol, TypeAlias

import numpy as np

from mysglang.srt.forward.worker import StateShape
from mysglang.srt.forward.worker_batch import NO_STATE, Bools, Ints, Slots, StateColumns
from mysglang.srt.mem_cache.req_to_token import ReqToTokenPool
from mysglang.srt.mem_cache.tree_node import PrefixMatch


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Use of the states. free + evictable + held == total."""

    total: int = 0
    free: int = 0
    evictable: int = 0
    """Checkpoints: free as soon as a state is wanted."""
    held: int = 0
    """States of open rows."""


NO_COUNTS = StateCounts()


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A saved state that belongs to the prefix that ends with a page."""

    page: int
    state: int
    confirmed: bool = False
    """True if a row that wrote it, or began with it, had a finite result."""


@dataclass(slots=True)
class RowState:
    """The states of an open row."""

    state: int
    planned: int
    """Tokens of its prompt that are in planned steps, or were found."""
    branch: int
    """Tokens up to which the prefix cache had the row's pages, where that is further than the row could begin from."""
    began: Checkpoint | None
    """The checkpoint with which it began; None if it began empty."""
    written: list[Checkpoint] = field(default_factory=list)
    """Copied out by its steps, until it has a finite result."""


Known: TypeAlias = Callable[[int], int]
"""Tokens of a row -> the page that ends with them: the prefix cache's where it has one, else the row's own."""


class States(Protocol):
    """Interface between a KvManager and states, also for models without states."""

    def open(self, slot: int, pages: Ints, match: PrefixMatch) -> None:
        """Begins a row with these pages, from a match at which it can continue."""
        ...

    def commit(self, slot: int, end: int, known: Known, *, more: bool) -> None:
        """Plans which states to keep, after a step with the row's prompt tokens up to `end` was planned. `more`: the
        prompt is longer.
        """
        ...

    def condemn(self, slot: int) -> bool:
        """Handles a result of this row that is not finite. Returns True if the row began with a checkpoint that was not
        confirmed.
        """
        ...

    def take(self, slots: Slots, starts: Ints) -> StateColumns | None:
        """Returns the state columns of a step of these rows, which start at these tokens. States that the step copies
        out can be matched from now on.
        """
        ...

    def counts(self) -> StateCounts: ...


class NoStates:
    """A null object for a model whose layers keep no state."""

    def open(self, slot: int, pages: Ints, match: PrefixMatch) -> None:
        pass

    def commit(self, slot: int, end: int, known: Known, *, more: bool) -> None:
        pass

    def condemn(self, slot: int) -> bool:
        return False

    def take(self, slots: Slots, starts: Ints) -> StateColumns | None:
        return None

    def counts(self) -> StateCounts:
        return NO_COUNTS


class StateSpace:
    """The states of rows, and checkpoints of them in cached prefixes (implements `States` and `spaces.Bound`)."""

    def __init__(self, shape: StateShape, rows: ReqToTokenPool, *, num_pages: int, shares: bool) -> None:
        """`num_pages`: number of pages of the rows and the prefix cache, which are numbered from 1. `shares`: True if
        the cache keeps prefixes.
        """
        assert shape.num_states >= rows.num_slots, "a request could not have a state"
        self.num_states = shape.num_states
        self.interval = lcm(shape.interval, rows.page_size)
        """Checkpoints stand after a multiple of so many tokens."""
        self._shares = shares
        self._free = list(range(shape.num_states - 1, -1, -1))
        self._of_slot: Ints = np.full(rows.num_slots, NO_STATE, np.int32)
        self._rows: dict[int, RowState] = {}
        self._behind: dict[int, Checkpoint] = {}
        """Page -> checkpoint after it, including those that are still to be copied out."""
        self._found: Bools = np.zeros(num_pages + 1, np.bool_)
        """[num_pages + 1] whether a row may begin behind the page."""
        self._used: OrderedDict[int, Checkpoint] = OrderedDict()
        """Page -> checkpoint that rows may begin with, the least recently used first."""
        self._copies: dict[int, int] = {}
        """For the next step: state of a row -> the state from which it is copied."""
        self._saves: list[tuple[int, int, Checkpoint]] = []
        """For the next step: (slot, tokens, the checkpoint after them)."""

    # Bound

    def reach(self, pages: Ints) -> int:
        """Returns the number of these pages, which begin a prompt, after which a row can continue."""
        ends = self._found[pages].nonzero()[0]
        return int(ends[-1]) + 1 if len(ends) else 0

    def has(self, pages: Ints) -> bool:
        """Returns False for a partly filled page: there is no checkpoint inside a page."""
        return False

    def confirm(self, slot: int) -> None:
        """Marks the checkpoints that the row began with, or has written, as sound, since a step of the row had a finite
        result.
        """
        row = self._rows[slot]
        if row.began is not None:
            row.began.confirmed = True
        for checkpoint in row.written:
            checkpoint.confirmed = True
        row.written.clear()

    def release(self, slot: int, known: Ints, copies: Ints) -> None:
        """Releases a row. The prefix cache keeps `known`, and not the row's `copies` of these, so checkpoints move
        over.
        """
        self.close(slot)
        for page, copy in zip(known.tolist(), copies.tolist(), strict=True):
            if page != copy and copy in self._behind and page not in self._behind:
                checkpoint = self._behind.pop(copy)
                checkpoint.page, self._behind[page] = page, checkpoint
                self._found[copy], self._found[page] = False, True
                del self._used[copy]
                self._used[page] = checkpoint

    def close(self, slot: int) -> None:
        """Releases a row and its state. A step in flight may still write the state, before its next owner reads it."""
        for own, _, checkpoint in list(self._saves):
            if own == slot:
                # No step will copy it out.
                self._drop(checkpoint)
        row = self._rows.pop(slot)
        self._of_slot[slot] = NO_STATE
        self._copies.pop(row.state, None)
        self._free.append(row.state)

    # States

    def open(self, slot: int, pages: Ints, match: PrefixMatch) -> None:
        assert match.host is None, "what the host keeps of a prefix has no state"
        began = None
        if match.num_pages:
            began = self._behind[int(pages[match.num_pages - 1])]
            self._used.move_to_end(began.page)
        source = NO_STATE if began is None else began.state
        # All copies of a step read what was there before it. So the row may even get the state that it begins with.
        state = self._take()
        branch = max(match.known, match.num_tokens) // self.interval * self.interval
        self._rows[slot] = RowState(state, match.num_tokens, branch, began)
        self._of_slot[slot] = state
        self._copies[state] = source

    def commit(self, slot: int, end: int, known: Known, *, more: bool) -> None:
        row = self._rows[slot]
        start, row.planned = row.planned, end
        # The last border of the chunk, where this prompt is likely to be gone on from; and the last one that the row
        # has in common with an earlier request, which the next one that shares as much begins from.
        last = (end if more else end - 1) // self.interval * self.interval
        for border in sorted({row.branch, last}):
            if self._shares and start < border <= end and (page := known(border)) not in self._behind:
                self._save(slot, border, page)

    def condemn(self, slot: int) -> bool:
        row = self._rows[slot]
        doubtful = [each for each in (row.began, *row.written) if each is not None and not each.confirmed]
        for checkpoint in doubtful:
            self._drop(checkpoint)
        row.written.clear()
        return row.began in doubtful

    def take(self, slots: Slots, starts: Ints) -> StateColumns | None:
        rows = {slot: row for row, slot in enumerate(slots.tolist())} if self._saves else {}
        saves = sorted((rows[slot], tokens, checkpoint.state) for slot, tokens, checkpoint in self._saves)
        for _, _, checkpoint in self._saves:
            self._found[checkpoint.page] = True
            self._used[checkpoint.page] = checkpoint
        self._saves = []
        copies, self._copies = self._copies, {}
        return StateColumns(
            slots=self._of_slot[slots],
            sources=np.fromiter(copies.values(), np.int64, len(copies)),
            targets=np.fromiter(copies, np.int64, len(copies)),
            rows=np.array([row for row, _, _ in saves], np.int32),
            offsets=np.array([tokens - int(starts[row]) for row, tokens, _ in saves], np.int32),
            checkpoints=np.array([state for _, _, state in saves], np.int32),
        )

    def counts(self) -> StateCounts:
        return StateCounts(self.num_states, len(self._free), len(self._behind), len(self._rows))

    # Follower of the allocator

    def give(self, pages: Ints) -> None:
        """Does nothing: a page that was just allocated has no checkpoint yet."""

    def drop(self, pages: Ints) -> None:
        """Frees the states behind these pages, which are about to be freed."""
        if self._behind:
            for page in pages.tolist():
                if (checkpoint := self._behind.get(page)) is not None:
                    self._drop(checkpoint)

    # Inside

    def _take(self) -> int:
        """Returns a state for a row. There is one, since there are no fewer than rows."""
        if not self._free:
            self._drop(next(iter(self._used.values() or self._behind.values())))
        return self._free.pop()

    def _save(self, slot: int, tokens: int, page: int) -> None:
        """Plans to copy the state after so many tokens of the row, if there is a free state to copy it to."""
        if not self._free and self._used:
            self._drop(next(iter(self._used.values())))
        if not self._free:
            return
        checkpoint = self._behind[page] = Checkpoint(page, self._free.pop())
        self._rows[slot].written.append(checkpoint)
        self._saves.append((slot, tokens, checkpoint))

    def _drop(self, checkpoint: Checkpoint) -> None:
        """Frees the state of a checkpoint, so that no row can begin with it any more. Does nothing if that was done
        already.
        """
        page = checkpoint.page
        if self._behind.get(page) is not checkpoint:
            return
        del self._behind[page]
        self._used.pop(page, None)
        self._found[page] = False
        self._saves = [save for save in self._saves if save[2] is not checkpoint]
        self._free.append(checkpoint.state)

    # Checking

    def check(self, rows: Mapping[int, int], cached: Ints) -> None:
        """Raise AssertionError if states and open rows (by slot) contradict each other; visits all states."""
        assert self._rows.keys() == rows.keys(), "a row has no state, or a state has no row"
        states = [*self._free, *(row.state for row in self._rows.values()), *(c.state for c in self._behind.values())]
        assert sorted(states) == list(range(self.num_states)), "states without exactly one owner"
        assert all(self._of_slot[slot] == row.state for slot, row in self._rows.items())
        assert (self._of_slot >= 0).sum() == len(self._rows), "a free slot has a state"
        pending = {checkpoint.page for _, _, checkpoint in self._saves}
        assert self._used.keys() | pending == self._behind.keys() and not self._used.keys() & pending
        assert set(self._found.nonzero()[0].tolist()) == self._used.keys(), "what is found is not what is there"
        assert all(page == checkpoint.page for page, checkpoint in self._behind.items())
