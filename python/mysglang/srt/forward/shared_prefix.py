"""SharedPrefixes: which rows of a step read the same pages, so that these need be read only once.

    rows 0 1 2 3, all on one system prompt, rows 2 and 3 on one conversation:

    group 0   positions [0, 1024)      rows 0 1 2 3
    group 1   positions [1024, 1536)   rows 2 3
    private   row 0: [1024, seq_len)   row 2: [1536, seq_len)   …

Knows neither the tree that this was found in nor the kernel that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]

MAX_LEVELS = 4
"""Groups that one row may be in. So R rows have at most R - 1 groups, and MAX_LEVELS * R entries of `rows`."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """Groups of rows that share a prefix: `G` groups, G >= 1; all arrays int32.

    All rows of a group have identical pages for its positions. The groups of one row are disjoint, ascend in the order
    of groups, and cover [0, p) of that row without holes, p <= seq_len - 1; the rest [p, seq_len) is the row's own. A
    row that is in no group shares nothing. The same object comes again while nothing changed, so whatever is derived
    from it alone may be kept by identity.
    """

    starts: Ints
    """[G] first position, a multiple of the page size."""
    ends: Ints
    """[G] position after the last, a multiple of the page size, > start."""
    row_indptr: Ints
    """[G + 1] group g has the rows rows[row_indptr[g]] … rows[row_indptr[g + 1] - 1], at least two."""
    rows: Ints
    """Batch row numbers, ascending within a group."""

    @property
    def num_groups(self) -> int:
        return len(self.starts)

    def rows_of(self, group: int) -> Ints:
        """Returns the rows of one group."""
        return self.rows[self.row_indptr[group] : self.row_indptr[group + 1]]

    def private_starts(self, num_rows: int) -> Ints:
        """Returns where each row's own part begins, [num_rows]: behind its groups, 0 for rows without a group."""
        private: Ints = np.zeros(num_rows, dtype=np.int32)
        sizes = np.diff(self.row_indptr)
        np.maximum.at(private, self.rows, np.repeat(self.ends, sizes))
        return private
