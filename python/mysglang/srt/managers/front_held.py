"""FrontHeld: what the front holds for requests, as plain numbers for who looks for a leak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontHeld:
    """All but the last two are 0 when nobody asks anything."""

    open_requests: int
    names: int
    """Names by which clients know open requests."""
    questions: int
    """Questions of this front that the scheduler has not answered yet."""
    open_texts: int
    """Requests of which the detokenizer holds text, as of its last sign of life."""
    open_texts_known_at: float
    """Seconds of the AWAKE clock at that moment; 0 before the first."""
    counters: Mapping[str, int]
    """Answers asked for since the start, by what became of them."""
