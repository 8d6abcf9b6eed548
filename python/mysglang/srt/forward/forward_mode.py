"""ForwardMode: the shape of a step, not the feature that asked for it."""

from __future__ import annotations

from enum import Enum


class ForwardMode(Enum):
    """Kind of a step's rows."""

    EXTEND = "extend"
    """Any number of new tokens in each row: whole prompts, chunks, or these together with decoding rows."""

    DECODE = "decode"
    """Exactly one new token in each row, and every row yields a token."""

    def __init__(self, name: str) -> None:
        self.is_decode = name == "decode"
