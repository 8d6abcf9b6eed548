"""Outside: what depends on a clock or on another process, told as news, so that all ranks learn it in the same turn.

    look ──▶ news of rank 0 ──▶ the messages of the turn, the same on every rank ──▶ each rank's part learns

Ranks must plan alike, so nothing that a plan depends on changes between two turns' messages. A part that has to do
with such a thing is asked for news once a turn; what the first rank's says is what all ranks learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Outside(Protocol):
    """A part of a scheduler."""

    def look(self) -> Sequence[Any]:
        """What happened since the last look, as plain structs that mean the same on every rank. Plans do not see it
        yet. Never waits.
        """
        ...

    def learn(self, news: Any) -> None:
        """One of these, on any rank. News come in the order in which they were told."""
        ...
