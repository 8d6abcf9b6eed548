"""Counts the tokens of an answer that were thought: those between the tags of thinking, including the tags.

Needs tags that are one token each, as they are wherever a model was trained to think.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenCounter(Protocol):
    """Counts the thoughts of one choice."""

    def count(self, token_ids: Sequence[int]) -> int | None:
        """Take the next tokens; returns the number that were thought so far, or None if it is unknown."""
        ...


class NoCounter:
    """Cannot tell."""

    def count(self, token_ids: Sequence[int]) -> int | None:
        return None


@dataclass(slots=True)
class ThoughtCounter:
    """Counts from `start_id`, or from the beginning if the prompt began the thinking, to `end_id`."""

    start_id: int
    end_id: int
    thinking: bool
    thought: int = 0

    def count(self, token_ids: Sequence[int]) -> int | None:
        for token_id in token_ids:
            self.thinking = self.thinking or token_id == self.start_id
            self.thought += self.thinking
            if token_id == self.end_id:
                self.thinking = False
        return self.thought
