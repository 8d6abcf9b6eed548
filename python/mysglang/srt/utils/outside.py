"""Outside: facts that depend on a clock or on another process, such as timeouts. The first rank sends them as news, so
that all ranks learn them in the same turn.

    look ──▶ news of rank 0 ──▶ the messages of the turn, the same on every rank ──▶ each rank's part learns
                  ▲
    look ──▶ reports of the others, about work that every rank does

All ranks must make the same plans, so the facts that a plan depends on may change only with the messages of a turn.
Once a turn, `look` collects the news of each part on the first rank; `learn` then applies them on every rank. Work that
every rank does by itself, such as copies of its pages, is reported by each rank, and `Reports` on the first rank find
out what all of them have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Outside(Protocol):
    """A part of a scheduler that depends on a clock, or on other processes."""

    def look(self) -> Sequence[Any]:
        """Returns the events since the last call, as structs that mean the same on every rank. Never waits. Plans must
        not use these events before `learn`.
        """
        ...

    def learn(self, news: Any) -> None:
        """Applies one such struct. Called on every rank, in the order in which the structs were sent."""
        ...


class Reports(Protocol):
    """Joins the reports of all ranks about the same work."""

    def add(self, rank: int, news: Any) -> Sequence[Any]:
        """Takes what `look` returned on a rank. Returns the news that follow for all ranks."""
        ...
