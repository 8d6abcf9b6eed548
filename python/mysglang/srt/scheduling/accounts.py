"""Accounts: what running requests have used, for whoever shares it out. Knows slots; decides nothing."""

from __future__ import annotations

from typing import Protocol


class Accounts(Protocol):
    """Hears of every request that gives its slot back, just before it does."""

    def close(self, slot: int) -> None:
        """The request in `slot` will compute nothing more there."""
        ...


class NoAccounts:
    """Nobody counts."""

    def close(self, slot: int) -> None:
        pass
