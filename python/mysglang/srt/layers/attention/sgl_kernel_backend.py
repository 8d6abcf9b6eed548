"""Decode attention with our own CUDA kernel: keys that rows share are read once, every block reads the same amount.

    plan on the host from lengths and groups  ->  columns of the step's upload  ->  one kernel a layer, one that joins

It takes decode steps only, and steps that try drafts: these have late plans (`DecodePlanner.fill_late`). A plan is for
one kind of layer (heads and window); most models have one.
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
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.kernels.attention import MOST_FRESH, planned_decode
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape
from mysglang.srt.layers.attention.graph import HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader

CPU_BLOCKS = 8
"""Blocks that are planned for where there is no device: for tests."""
LEAST_QUERIES = 32
"""Captured steps that try drafts have at least so many query heads for each KV head, over all rows. With fewer, the
Triton kernel takes as long or less on an H200 (benchmark/kernels/late_lengths.md).
"""
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
    """True if all keys except those of the rows' new tokens were written by earlier steps; False in the last layer of a
    prompt.
    """
    late: bool = False
    """True if the plan is a late one: the kernel takes lengths from the device."""


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
        if batch.host.high_lens is not None:
            return self._plan_late(batch)
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
            batch.seq_lens if metadata.late else None,
            batch.extend_lens if metadata.late else None,
            spec.sinks,
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

    def takes_drafts(self, host: ModelWorkerBatch) -> bool:
        return host.high_lens is not None and int(host.extend_lens.max()) <= MOST_FRESH

    def pays(self, rows: int) -> bool:
        return all(rows * shape.group >= LEAST_QUERIES for shape in self._shapes)

    def late_columns(self, rows: int, width: int) -> HostColumns:
        columns = {}
        for number, shape in enumerate(self._shapes):
            planned = planner(shape, rows, width)
            # Memory of captured steps that stays is made before a capture.
            self._room(shape, planned.max_parts)
            for name, array in planned.columns().items():
                columns[column_name(number, name)] = array
        return columns

    def open_late(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._metadata(len(batch.slots), batch.attn_columns, early=True, late=True, width=batch.row_room or 1)

    def fill_late(self, batch: ModelWorkerBatch, width: int, columns: HostColumns) -> None:
        rows = len(columns[column_name(0, "joins")]) // width
        self._fill_late(batch, np.arange(rows * width, dtype=np.int64).reshape(rows, width), columns)

    def _plan_late(self, batch: ForwardBatch) -> AttentionMetadata:
        lens = batch.host.extend_lens
        rows, width = len(lens), batch.row_room or int(lens.max())
        places = np.arange(width, dtype=np.int64)
        tokens = np.arange(rows * width, dtype=np.int64).reshape(rows, width)
        if not batch.row_room:
            firsts = np.cumsum(lens, dtype=np.int64) - lens
            tokens = firsts[:, None] + np.minimum(places, lens[:, None] - 1)
        columns = self.late_columns(rows, width)
        self._fill_late(batch.host, tokens, columns)
        return self._metadata(rows, self._uploader.upload(columns), early=False, late=True, width=width)

    def _fill_late(self, batch: ModelWorkerBatch, tokens: Longs, columns: HostColumns) -> None:
        rows, width = tokens.shape
        slots = padded(batch.slots, rows, self._page_table.shape[0] - 1)
        most_lens = padded(batch.most_lens, rows, 1)
        for number, shape in enumerate(self._shapes):
            arrays = {name: columns[column_name(number, name)] for name in ARRAYS}
            planner(shape, rows, width).fill_late(slots, most_lens, tokens, arrays)

    def _kind_of(self, spec: AttentionSpec) -> DecodeShape:
        return DecodeShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window, self._blocks)

    def _metadata(
        self, rows: int, uploaded: Mapping[str, Tensor], *, early: bool, late: bool = False, width: int = 1
    ) -> DecodeMetadata:
        kinds = {}
        for number, shape in enumerate(self._shapes):
            arrays = {name: uploaded[column_name(number, name)] for name in ARRAYS}
            room, lse = self._room(shape, planner(shape, rows, width).max_parts)
            kinds[shape] = KindPlan(**arrays, partial=room, partial_lse=lse)
        return DecodeMetadata(kinds, early, late)

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
def planner(shape: DecodeShape, rows: int, width: int = 1) -> DecodePlanner:
    """Returns the planner for a size. It is cached, because a planner works out its limits once."""
    return DecodePlanner(shape, rows, width)


def column_name(number: int, name: str) -> str:
    """Returns the name of an array of the plan for the numbered kind of layer."""
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
