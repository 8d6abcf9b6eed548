"""Edits: sparse additions to logits, as several features make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mysglang.srt.sampling.feature import Act, Arrays, DeviceSide, FeatureColumns, Slots, Stage, Tensors, places
from mysglang.srt.sampling.row_table import RowTable, Run

if TYPE_CHECKING:
    from torch import Tensor


class Edits(Act, frozen=True, eq=False):
    """Adds numbers to logits: logits[rows[i], ids[i]] += values[i]. int64, int64, float32; the pairs are distinct."""

    stage: ClassVar[Stage] = Stage.EDIT
    run: ClassVar[Run] = "bias"
    rows: Tensor
    ids: Tensor
    values: Tensor

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        at = (self.rows, self.ids)
        logits[at] = logits[at] + self.values

    def alone(self, row: int) -> Act | None:
        at = places(self.rows, row)
        return replace(self, rows=at * 0, ids=self.ids[at], values=self.values[at]) if len(at) else None


class Prohibitions(Edits, frozen=True, eq=False):
    """Edits that no later act may undo: each value is -inf."""

    stage: ClassVar[Stage] = Stage.MASK
    run: ClassVar[Run] = "forbidden"


class EditsOnDevice(DeviceSide):
    """The device side of a feature whose columns are those of `edits`. It keeps no state."""

    def __init__(self, kind: type[Edits] = Edits) -> None:
        self._kind = kind

    def tabulate(self, part: FeatureColumns, table: RowTable) -> bool:
        if part.rows is None:
            return False
        table.put_runs(self._kind.run, part.rows, part.columns["ids"], part.columns["values"])
        return True

    def act(self, tensors: Tensors) -> Act | None:
        if "rows" not in tensors:
            return None
        return self._kind(tensors["rows"], tensors["ids"], tensors["values"])


def edits(
    feature: str, rows: Slots, ids: Sequence[npt.NDArray[np.integer]], values: Sequence[npt.NDArray[np.floating]]
) -> FeatureColumns:
    """Returns columns that say, for each of the ascending `rows` of the batch, which value is added to which token
    (-inf forbids it).
    """
    columns: Arrays = {
        "ids": np.concatenate(ids).astype(np.int64, copy=False),
        "values": np.concatenate(values).astype(np.float32, copy=False),
    }
    return FeatureColumns(feature, np.repeat(rows, [len(row) for row in ids]), columns)
