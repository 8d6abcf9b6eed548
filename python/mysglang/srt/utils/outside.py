"""Outside: facts that depend on a clock or on another process, such as timeouts. The first rank sends them as news, so
that all ranks learn them in the same turn.

    look ──▶ news of rank 0 ──▶ the messages of the turn, the same on every rank ──▶ each rank's part learns

All ranks must make the same plans, so the facts that a plan depends on may change only with the messages of a turn.
Once a turn, `look` collects the news of each part on the first rank; `learn` then applies them on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Outside(Protocol):
    """A part of a scheduler that depends on such facts."""

    def look(self) -> Sequence[Any]:
        """Returns the events since the last call, as structs that mean the same on every rank. Never waits. Plans must
        not use these events before `learn`.
        """
        ...

    def learn(self, news: Any) -> None:
        """Applies one such struct. Called on every rank, in the order in which the structs were sent."""
        ...
