"""Patience: how long the steps of one grammar take, and when that is enough.

A grammar is tried out before it is used (`compile_process.try_out`), but an ambiguous one may take its time only later,
and then more with each token, while every other request waits. So each step is timed. Two slow ones soon after each
other end the answers of that grammar, and it is refused from then on.
"""

from __future__ import annotations

SLOW_S = 0.03
"""Seconds of the thread's own time, so that a busy machine makes no grammar slow. A usual step takes a thousandth."""
ENOUGH = 1.5
FORGIVEN = 0.01
"""The part of a slow step that each quick step makes up for."""


class Patience:
    """The patience with one grammar, shared by all answers that follow it."""

    __slots__ = ("_slow",)

    def __init__(self) -> None:
        self._slow = 0.0

    @property
    def over(self) -> bool:
        return self._slow > ENOUGH

    def took(self, seconds: float) -> None:
        """One step did."""
        if seconds > SLOW_S:
            self._slow += 1
        elif 0 < self._slow <= ENOUGH:
            self._slow = max(0.0, self._slow - FORGIVEN)
