"""PageReader: from slots and positions to KV slots, through the page table. In plain torch, for the plain backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mysglang.srt.platforms.upload import to_device

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PageReader:
    """A page table [num_slots + 1, max_pages] int32 that others change."""

    page_table: Tensor
    page_size: int

    def kv_slots(self, slots: Indices, positions: Indices) -> Tensor:
        """Returns the KV slots of the positions [R, L] of each row [R]. Positions past a row's end get arbitrary slots
        of the table.
        """
        columns = np.minimum(positions // self.page_size, self.page_table.shape[1] - 1)
        pages = self.page_table[self.on_device(slots)[:, None], self.on_device(columns)]
        return pages * self.page_size + self.on_device(positions % self.page_size)

    def on_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        """Copies an array to the device of the page table."""
        return to_device(values, self.page_table.device)
