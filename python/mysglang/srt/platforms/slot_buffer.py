"""SlotBuffer: a tensor that the device keeps for every slot between steps. Its owner declares it, so that it can be
budgeted, listed, and handled when a request leaves its slot. Plain numbers, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Keeping(Enum):
    """How a request in a new slot gets its part of a buffer."""

    DERIVED = "rebuilt from the request's tokens"
    """The steps of the request write it from its tokens and pages."""
    ADVISORY = "affects speed only"
    """A wrong or missing value may cost speed, and never changes an answer."""
    TRAVELS = "moves with the request"
    """The value exists nowhere else, so it must move with the request."""


@dataclass(frozen=True, slots=True)
class SlotBuffer:
    """One tensor with a row for each slot."""

    name: str
    row_bytes: int
    keeping: Keeping
    on_demand: bool = False
    """True if rows are allocated when requests first need them. Such a buffer is in no memory budget."""

    def nbytes(self, rows: int) -> int:
        """Returns the number of bytes that are allocated at the start, for so many rows."""
        return 0 if self.on_demand else rows * self.row_bytes

    def __str__(self) -> str:
        when = ", allocated at first use" if self.on_demand else ""
        return f"{self.name}, {self.row_bytes} bytes{when} ({self.keeping.value})"
