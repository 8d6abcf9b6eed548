"""Trait: what few requests have (stop rules, a grammar, log-probabilities): a step without any asks nothing."""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import Bools, Slots

NO_ROWS: Slots = np.zeros(0, dtype=np.int64)


class Trait:
    """Which open slots have it, and how many."""

    __slots__ = ("_has", "count")

    def __init__(self, num_slots: int) -> None:
        self._has: Bools = np.zeros(num_slots, dtype=np.bool_)
        self.count = 0

    def __getitem__(self, slot: int) -> bool:
        return bool(self._has[slot])

    def __setitem__(self, slot: int, has: bool) -> None:
        if has or self.count:  # most traits are nobody's
            self.count += int(has) - int(self._has[slot])
            self._has[slot] = has

    def of(self, slots: Slots) -> Bools:
        """[R] whether each has it."""
        has: Bools = self._has[slots]
        return has

    def rows(self, slots: Slots) -> Slots:
        """Which entries of `slots` have it, in order."""
        return self._has[slots].nonzero()[0] if self.count else NO_ROWS

    def clear(self, slots: Slots) -> None:
        """Distinct slots have it no more."""
        if self.count:
            self.count -= int(np.count_nonzero(self._has[slots]))
            self._has[slots] = False
