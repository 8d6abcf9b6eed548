"""Decode attention with our own CUDA kernel: keys that rows share are read once, every block reads the same amount.

    plan on the host from lengths and groups  ->  columns of the step's upload  ->  one kernel a layer, one that joins

It takes decode steps only. A plan is for one kind of layer (heads and window); most models have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.attention import planned_decode
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape
from mysglang.srt.layers.attention.graph import HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader

CPU_BLOCKS = 8
"""Blocks that are planned for where there is no device: for tests."""
ARRAYS = ("indptr", "items", "members", "joins")


@dataclass(frozen=True, slots=True)
class KindPlan:
    """The plan of a step for one kind of layer, on the device, and room for its partial results."""

    indptr: Tensor
    items: Tensor
    members: Tensor
    joins: Tensor
    partial: Tensor
    partial_lse: Tensor


@dataclass(frozen=True, slots=True)
class DecodeMetadata:
    """One step, or all steps of one captured batch size."""

    kinds: Mapping[DecodeShape, KindPlan]
    early: bool
    """True if all keys except the rows' newest were written by earlier steps; False in the last layer of a prompt."""


class SglKernelBackend:
    """Attention of decode steps in bf16 and fp16 with head_dim 64, 128 or 256."""

    def __init__(self, pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]) -> None:
        self.kv_pool = pool
        self._page_table = page_table
        self._uploader = Uploader(platform_named(page_table.device.type))
        self._blocks = num_blocks(page_table.device)
        self._kinds = {spec.layer_id: self._kind_of(spec) for spec in specs}
        self._shapes = tuple(dict.fromkeys(self._kinds.values()))
        self._rooms: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        rows = len(batch.host.slots)
        columns = self.graph_columns(rows)
        self.fill_columns(batch.host, columns)
        return self._metadata(rows, self._uploader.upload(columns), early=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, DecodeMetadata)
        kind = metadata.kinds[self._kinds[spec.layer_id]]
        keys, values = self.kv_pool.slots(spec.layer_id)
        return planned_decode(
            q,
            keys,
            values,
            self._page_table,
            kind.indptr,
            kind.items,
            kind.members,
            kind.joins,
            kind.partial,
            kind.partial_lse,
            self.kv_pool.page_size,
            spec.scale,
            spec.logit_cap,
            metadata.early,
        )

    def graph_columns(self, size: int) -> HostColumns:
        columns = {}
        for number, shape in enumerate(self._shapes):
            for name, array in planner(shape, size).columns().items():
                columns[column_name(number, name)] = array
        return columns

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        for number, shape in enumerate(self._shapes):
            arrays = {name: columns[column_name(number, name)] for name in ARRAYS}
            size = len(arrays["joins"])
            slots = padded(batch.slots, size, self._page_table.shape[0] - 1)
            planner(shape, size).fill(slots, padded(batch.seq_lens, size, 1), batch.shared, arrays)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._metadata(len(batch.slots), batch.attn_columns, early=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        pass

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        pass

    def covers(self, seq_lens: Ints) -> bool:
        return True

    def _kind_of(self, spec: AttentionSpec) -> DecodeShape:
        return DecodeShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window, self._blocks)

    def _metadata(self, rows: int, uploaded: Mapping[str, Tensor], *, early: bool) -> DecodeMetadata:
        kinds = {}
        for number, shape in enumerate(self._shapes):
            arrays = {name: uploaded[column_name(number, name)] for name in ARRAYS}
            room, lse = self._room(shape, planner(shape, rows).max_parts)
            kinds[shape] = KindPlan(**arrays, partial=room, partial_lse=lse)
        return DecodeMetadata(kinds, early)

    def _room(self, shape: DecodeShape, parts: int) -> tuple[Tensor, Tensor]:
        """Returns buffers for `parts` partial results, shared by all steps, which run one after another on the device.

        What was handed out stays, since captured steps write there.
        """
        width = shape.num_heads * shape.head_dim
        key = next((key for key in self._rooms if key[0] == width and key[1] >= parts), (width, parts))
        if key not in self._rooms:
            empty = partial(torch.empty, dtype=torch.float32, device=self._page_table.device)
            self._rooms[key] = (empty(parts * width), empty(parts * shape.num_heads))
        out, lse = self._rooms[key]
        return out.view(-1, shape.num_heads, shape.head_dim), lse.view(-1, shape.num_heads)


@lru_cache(maxsize=256)
def planner(shape: DecodeShape, rows: int) -> DecodePlanner:
    """Returns the planner for a size. It is cached, because a planner works out its limits once."""
    return DecodePlanner(shape, rows)


def column_name(number: int, name: str) -> str:
    """Name of an array of the plan for the numbered kind of layer."""
    return f"decode_{number}_{name}"


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
