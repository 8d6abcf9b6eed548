"""The places for open answers: whether a request finds some, and which open requests give theirs up to it.

In a full queue the youngest call of the lowest priority goes first, and only as many as the newcomer needs. Knows
neither how a request ends nor what its client is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

from mysglang.srt.errors import Overloaded
from mysglang.srt.managers.fronts import Board, Column
from mysglang.srt.managers.request_state import Inbox, ReqState
from mysglang.srt.managers.shares import QueueShares
from mysglang.srt.messages.outputs import FULL, Abort

DISPLACED = Abort(
    "The request queue is full, and a request of higher priority took the place of this one.", status=FULL
)
"""How a request ends that gives up its place."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The answers of one call that find no place."""

    priority: int
    tenant: str


class Precedence(Protocol):
    """Says which open answers give up their places."""

    def displaced(
        self, newcomer: Newcomer, opened: Collection[ReqState], suffices: Callable[[Collection[ReqState]], bool]
    ) -> Collection[ReqState]:
        """Returns the answers of `opened` that end so that `newcomer` finds room, or none if all would not be enough.

        `opened` is in the order of arrival. `suffices` says whether there is room without the given answers. If it is
        true for some answers, it is true for more.
        """
        ...


class FirstComeFirstServed:
    """A null object for Precedence: an open request keeps its place."""

    def displaced(
        self, newcomer: Newcomer, opened: Collection[ReqState], suffices: Callable[[Collection[ReqState]], bool]
    ) -> Collection[ReqState]:
        return ()


class UrgentFirst:
    """Requests of lower priority give up their places to those of higher priority of the same tenant.

    A call ends as a whole, and only if no part of its answers has arrived.
    """

    def __init__(self, *, low_first: bool) -> None:
        """`low_first`: true if small numbers are the urgent ones."""
        self._sign = -1 if low_first else 1

    def displaced(
        self, newcomer: Newcomer, opened: Collection[ReqState], suffices: Callable[[Collection[ReqState]], bool]
    ) -> Collection[ReqState]:
        urgency = self._sign * newcomer.priority
        lower = [
            state
            for state in opened
            if self._sign * state.priority < urgency and state.tenant == newcomer.tenant and not state.inbox.has_begun
        ]
        # The answers of one call are neighbours, since they were opened together.
        calls: list[list[ReqState]] = [list(states) for _, states in groupby(lower, _inbox)]
        calls.reverse()
        calls.sort(key=lambda states: self._sign * states[0].priority)
        enough = bisect_left(range(len(calls) + 1), True, key=lambda count: suffices(_flat(calls[:count])))
        return _flat(calls[:enough]) if enough <= len(calls) else ()


def _inbox(state: ReqState) -> Inbox:
    return state.inbox


def _flat(calls: list[list[ReqState]]) -> list[ReqState]:
    return [state for call in calls for state in call]


def precedence_of(priorities: Literal["none", "high_first", "low_first"]) -> Precedence:
    """Returns the precedence on a server with such priorities."""
    return FirstComeFirstServed() if priorities == "none" else UrgentFirst(low_first=priorities == "low_first")


class Places:
    """The places for open answers, as one front gives them to its requests. `opened` are always its open answers."""

    def __init__(self, board: Board, most: int, shares: QueueShares, precedence: Precedence) -> None:
        """`most`: places of all fronts together."""
        self.most = most
        self._board = board
        self._shares = shares
        self._precedence = precedence

    def displaced(self, count: int, newcomer: Newcomer, opened: Collection[ReqState]) -> Collection[ReqState]:
        """Returns the answers that end before `newcomer` takes its places; none if it finds room anyway, or never."""

        def has_room(gone: Collection[ReqState] = ()) -> bool:
            left, free = set(opened).difference(gone) if gone else opened, self._free() + len(gone)
            return count <= free and self._shares.has_room(newcomer.tenant, count, left, lambda: free)

        return () if has_room() else self._precedence.displaced(newcomer, opened, has_room)

    def take(self, count: int, newcomer: Newcomer, opened: Collection[ReqState]) -> None:
        """Raises Overloaded if so many more answers exceed the limit of all fronts, or the share of their tenant."""
        self._board.write(Column.OPEN_ANSWERS, len(opened))
        if not self._shares.has_room(newcomer.tenant, count, opened, self._free):
            raise Overloaded("The request queue is full: the rest of it is for other clients.")
        # Written down first: of two fronts that do so at the same moment, both may be refused, but never both let in.
        self._board.write(Column.OPEN_ANSWERS, len(opened) + count)
        if self._free() < 0:
            raise Overloaded("The request queue is full.")

    def _free(self) -> int:
        """Returns how many more answers all fronts may open."""
        return self.most - self._board.total(Column.OPEN_ANSWERS)
