"""HiddenBook: the hidden states of one request, gathered step by step until they are sent.

A position's hidden state is what the logits of the token after it are made of. Only requests that asked have a book, so
nothing here is on the path of the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mysglang.srt.forward.worker_batch import Bools, Floats, HiddenColumns


class HiddenBook:
    """What one request wants of hidden states, and what it has so far."""

    __slots__ = ("_new", "have")

    def __init__(self, first: int) -> None:
        """`first`: the position from which on they are wanted, one after the other."""
        self.have = first
        """Positions before this one are wanted no more: what is computed once more is not told once more."""
        self._new: list[Floats] = []

    def add(self, position: int, states: Floats) -> None:
        """Take the states [n, hidden_size] from `position` on.

        What is not finite is left out, and all behind it: it comes again if the request is computed again.
        """
        if position == self.have and np.isfinite(states).all():
            self._new.append(states)
            self.have += len(states)

    def take(self) -> bytes:
        """The float32 bytes of what became known since the last call."""
        told = b"".join(states.tobytes() for states in self._new)
        self._new.clear()
        return told


def hidden_by_row(states: Floats, asked: HiddenColumns, alive: Bools) -> Iterator[tuple[int, Floats]]:
    """(row, its states) for every living row that has some."""
    ends = np.cumsum(asked.counts)
    for row in np.flatnonzero((asked.counts > 0) & alive).tolist():
        yield row, states[ends[row] - asked.counts[row] : ends[row]]
