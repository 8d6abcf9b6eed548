"""Outside: facts that depend on a clock or on another process. They are sent as news, so that all ranks learn them in
the same turn.

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
        """Events since the last look, as plain structs that mean the same on every rank. Plans do not see them yet.
        Never waits.
        """
        ...

    def learn(self, news: Any) -> None:
        """Apply one of these structs, on any rank. News arrive in the order in which they were sent."""
        ...
