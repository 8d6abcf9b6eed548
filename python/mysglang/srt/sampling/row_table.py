"""RowTable: how each row of a decode step is sampled, in the layout that the kernel `sample_rows` reads. Every sampling
feature writes its own fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mysglang.srt.kernels.row_layout import BIAS, NEUTRAL, ROW, plain_rows

Array: TypeAlias = npt.NDArray[Any]
Run: TypeAlias = Literal["bias", "forbidden"]


class RowTable:
    """The rows of one step, at first all neutral. It stays valid while the step's rows stay the same."""

    def __init__(self, rows: int) -> None:
        self.rows: npt.NDArray[np.void] = np.full(rows, NEUTRAL, dtype=ROW)
        self._entries: list[npt.NDArray[np.void]] = []
        self._end = 0

    def put(self, rows: Array | slice, **fields: Array | float) -> None:
        """Sets fields of ROW in these rows."""
        for name, values in fields.items():
            self.rows[name][rows] = values

    def put_runs(self, run: Run, rows: Array, ids: Array, values: Array | float) -> None:
        """Sets runs of entries. rows, ids: [E], entries of a row side by side and rows ascending; values: [E] or
        one.
        """
        entries = np.zeros(len(ids), dtype=BIAS)
        entries["id"], entries["value"] = ids, values
        self._entries.append(entries)
        having, begins, counts = np.unique(rows, return_index=True, return_counts=True)
        begins = begins + self._end
        self.put(having, **{f"{run}_begin": begins, f"{run}_end": begins + counts})
        self._end += len(ids)

    def columns(self, which: Array | slice = slice(None)) -> Mapping[str, Array]:
        """Returns the arrays to upload, "rows" and "bias". `which`: the rows to upload."""
        entries = np.concatenate([*self._entries, np.zeros(1, dtype=BIAS)])
        return {"rows": self.rows[which].view(np.int32), "bias": entries.view(np.int32)}

    def plain(self, which: Array | slice = slice(None)) -> bool:
        """True if nothing but a temperature is asked of these rows."""
        return plain_rows(self.rows[which])
