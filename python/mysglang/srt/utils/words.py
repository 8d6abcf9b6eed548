"""Numbers with their nouns, for messages that people read."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns the number with its noun: `one` for 1, else `several`, by default `one` with an s."""
    return f"{number} {one if number == 1 else several or one + 's'}"
