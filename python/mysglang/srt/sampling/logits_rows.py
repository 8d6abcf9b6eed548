"""LogitsRows: which tokens of a step have logits, as (row of the batch, place in the row), in the order of the logits.

These are the last tokens of a row: none for a chunk that is not the last of its prompt, one for a row that yields one
token, several where proposed tokens are verified.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]


class LogitsRows:
    """S rows of logits for R rows of a batch."""

    __slots__ = ("_counts", "_first", "_one_each", "rows")

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        """`counts`: [R], how many of the last tokens of each row have logits."""
        self._counts = counts
        self._one_each = bool((counts == 1).all())
        if self._one_each:
            self.rows = self._first = np.arange(len(counts), dtype=np.int64)
        else:
            self._first = np.cumsum(counts) - counts
            self.rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        """`rows`: [S] row of the batch."""

    @classmethod
    def of(cls, yields: npt.NDArray[np.bool_], per_row: npt.NDArray[np.int32] | None = None) -> LogitsRows:
        """Builds the rows: `per_row` logits for each row, or one for each row that yields a token."""
        return cls((yields if per_row is None else per_row).astype(np.int64))

    def lengths(self, seq_lens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Returns the number of tokens up to and including the one that has these logits, [S]; seq_lens: [R] with all
        of the step's tokens.
        """
        if self._one_each:
            return seq_lens
        behind = self._first[self.rows] + self._counts[self.rows] - 1 - np.arange(len(self.rows))
        lengths: npt.NDArray[np.int32] = (seq_lens[self.rows] - behind).astype(np.int32)
        return lengths

    def entries(self, rows: Indices) -> tuple[Indices | slice, Indices]:
        """Maps entries for the ascending `rows` [E] of the batch to rows of the logits.

        Returns the index of the entry for each logits row, and the logits row.
        """
        if self._one_each:
            return slice(None), rows.astype(np.int64, copy=False)
        counts = self._counts[rows]
        index = np.repeat(np.arange(len(rows), dtype=np.int64), counts)
        within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
        return index, np.repeat(self._first[rows], counts) + within

    def only(self, rows: npt.NDArray[np.integer]) -> Indices:
        """Returns the first row of the logits of each of these rows, which have one at least."""
        at: Indices = self._first[rows]
        return at
