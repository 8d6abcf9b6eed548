"""PlannedKinds: the plans of decode steps for all kinds of attention layers of a model, on their way to the device.

    plan on the host from lengths and groups  ->  columns of the step's upload  ->  one kernel a layer, one that joins

A plan is for one kind of layer (heads and window); most models have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.kernels.attention import DecodePlan
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape
from mysglang.srt.layers.attention.graph import HostColumns
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader

CPU_BLOCKS = 8
"""Blocks that are planned for where there is no device: for tests."""
ARRAYS = ("indptr", "items", "members", "joins")


class PlannedKinds:
    """Plans steps of any size over one page table."""

    def __init__(self, page_table: Tensor, specs: Sequence[AttentionSpec]) -> None:
        self.page_table = page_table
        self._uploader = Uploader(platform_named(page_table.device.type))
        blocks = num_blocks(page_table.device)
        self._kinds = {spec.layer_id: kind_of(spec, blocks) for spec in specs}
        self.shapes = tuple(dict.fromkeys(self._kinds.values()))
        self._rooms: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def of(self, spec: AttentionSpec) -> DecodeShape:
        """Returns the kind of a layer."""
        return self._kinds[spec.layer_id]

    def columns(self, rows: int) -> HostColumns:
        """Returns zeroed arrays for the plans of a step with so many rows, one new token each."""
        columns = {}
        for number, shape in enumerate(self.shapes):
            for name, array in planner(shape, rows).columns().items():
                columns[column_name(number, name)] = array
        return columns

    def fill(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        """Writes the plans of a step. Rows beyond the batch's are padding."""
        for number, shape in enumerate(self.shapes):
            arrays = arrays_of(number, columns)
            size = len(arrays["joins"])
            slots = padded(batch.slots, size, self.padding_slot)
            planner(shape, size).fill(slots, padded(batch.seq_lens, size, 1), batch.shared, arrays)

    def late_columns(self, rows: int, width: int) -> HostColumns:
        """Returns zeroed arrays for late plans, with room for `width` tokens in each row."""
        columns = {}
        for number, shape in enumerate(self.shapes):
            planned = planner(shape, rows, width)
            # Memory of captured steps that stays is made before a capture.
            self._room(shape, planned.max_parts)
            for name, array in planned.columns().items():
                columns[column_name(number, name)] = array
        return columns

    def fill_late(self, batch: ModelWorkerBatch, tokens: Longs, columns: HostColumns) -> None:
        """Writes late plans. tokens: [rows, width] the step's token at each place of a row."""
        rows, width = tokens.shape
        slots = padded(batch.slots, rows, self.padding_slot)
        most_lens = padded(batch.most_lens, rows, 1)
        for number, shape in enumerate(self.shapes):
            planner(shape, rows, width).fill_late(slots, most_lens, tokens, arrays_of(number, columns))

    @property
    def padding_slot(self) -> int:
        """The row of the page table that rows of padding have."""
        return self.page_table.shape[0] - 1

    def uploaded(self, columns: HostColumns) -> Mapping[str, Tensor]:
        """Returns the arrays on the device."""
        return self._uploader.upload(columns)

    def plans(self, rows: int, uploaded: Mapping[str, Tensor], width: int = 1) -> dict[DecodeShape, DecodePlan]:
        """Returns the plans over arrays that are on the device."""
        kinds = {}
        for number, shape in enumerate(self.shapes):
            arrays = arrays_of(number, uploaded)
            room, lse = self._room(shape, planner(shape, rows, width).max_parts)
            kinds[shape] = DecodePlan(**arrays, partial=room, partial_lse=lse)
        return kinds

    def _room(self, shape: DecodeShape, parts: int) -> tuple[Tensor, Tensor]:
        """Returns buffers for `parts` partial results, shared by all steps, which run one after another on the device.

        What was handed out stays, since captured steps write there.
        """
        heads, dim = shape.num_heads, shape.value_dim
        found = (key for key in self._rooms if key[:2] == (heads, dim) and key[2] >= parts)
        key = next(found, (heads, dim, parts))
        if key not in self._rooms:
            empty = partial(torch.empty, dtype=torch.float32, device=self.page_table.device)
            self._rooms[key] = (empty(parts, heads, dim), empty(parts, heads))
        return self._rooms[key]


@lru_cache(maxsize=256)
def planner(shape: DecodeShape, rows: int, width: int = 1) -> DecodePlanner:
    """Returns the planner for a size. It is cached, because a planner works out its limits once."""
    return DecodePlanner(shape, rows, width)


def kind_of(spec: AttentionSpec, blocks: int) -> DecodeShape:
    """Returns the kind of a layer, for so many blocks of threads."""
    return DecodeShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window, blocks, spec.latent_dim)


def column_name(number: int, name: str) -> str:
    """Returns the name of an array of the plan for the numbered kind of layer."""
    return f"decode_{number}_{name}"


def arrays_of(number: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of the plan for the numbered kind of layer, by their names in a plan."""
    return {name: columns[column_name(number, name)] for name in ARRAYS}


def padded(values: npt.NDArray[np.signedinteger[Any]], size: int, padding: int) -> Ints:
    """Returns the values, and padding up to the size."""
    column = np.full(size, padding, dtype=np.int32)
    column[: len(values)] = values
    return column


def num_blocks(device: torch.device) -> int:
    """Returns how many thread blocks run at once. A block takes nearly all shared memory of a multiprocessor."""
    if device.type != "cuda":
        return CPU_BLOCKS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
