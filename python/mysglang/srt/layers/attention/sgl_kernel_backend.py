"""Decode attention with our own CUDA kernels: keys that rows share are read once, every block reads the same amount.

It takes decode steps. Over keys and values, it also takes steps that try drafts: these have late plans
(`DecodePlanner.fill_late`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.kernels.attention import MOST_FRESH, DecodePlan, planned_decode, planned_latent_decode
from mysglang.srt.layers.attention.decode_plan import DecodeShape
from mysglang.srt.layers.attention.graph import HostColumns
from mysglang.srt.layers.attention.planned_kinds import PlannedKinds, column_name
from mysglang.srt.mem_cache.kv_pool.base import KvPool

LEAST_QUERIES = 32
"""Captured steps that try drafts have at least so many query heads for each KV head, over all rows. With fewer, the
Triton kernel takes as long or less on an H200 (benchmark/kernels/late_lengths.md).
"""


@dataclass(frozen=True, slots=True)
class DecodeMetadata:
    """One step, or all steps of one captured batch size."""

    kinds: Mapping[DecodeShape, DecodePlan]
    early: bool
    """True if all keys except those of the rows' new tokens were written by earlier steps; False in the last layer of a
    prompt.
    """
    late: bool = False
    """True if the plan is a late one: the kernel takes lengths from the device."""


class PlannedBackend:
    """The part of both backends that plans decode steps, whose graphs can be captured."""

    def __init__(self, pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]) -> None:
        self.kv_pool = pool
        self._planned = PlannedKinds(page_table, specs)

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        rows = len(batch.host.slots)
        columns = self._planned.columns(rows)
        self._planned.fill(batch.host, columns)
        return DecodeMetadata(self._planned.plans(rows, self._planned.uploaded(columns)), early=False)

    def graph_columns(self, size: int) -> HostColumns:
        return self._planned.columns(size)

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        self._planned.fill(batch, columns)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return DecodeMetadata(self._planned.plans(len(batch.slots), batch.attn_columns), early=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        pass

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        pass

    def covers(self, seq_lens: Ints) -> bool:
        return True


class LatentKernelBackend(PlannedBackend):
    """Attention of decode steps over latent rows in bf16 and fp16, at the sizes of DeepSeek's."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, DecodeMetadata)
        rows, _ = self.kv_pool.slots(spec.layer_id)
        return planned_latent_decode(
            q,
            rows,
            self._planned.page_table,
            metadata.kinds[self._planned.of(spec)],
            self.kv_pool.page_size,
            spec.scale,
            metadata.early,
        )


class SglKernelBackend(PlannedBackend):
    """Attention of decode steps in bf16 and fp16 with head_dim 64, 128 or 256."""

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return super().plan(batch) if batch.host.high_lens is None else self._plan_late(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, DecodeMetadata)
        keys, values = self.kv_pool.slots(spec.layer_id)
        return planned_decode(
            q,
            keys,
            values,
            self._planned.page_table,
            metadata.kinds[self._planned.of(spec)],
            self.kv_pool.page_size,
            spec.scale,
            spec.logit_cap,
            metadata.early,
            batch.seq_lens if metadata.late else None,
            batch.extend_lens if metadata.late else None,
            spec.sinks,
        )

    def takes_drafts(self, host: ModelWorkerBatch) -> bool:
        return host.high_lens is not None and int(host.extend_lens.max()) <= MOST_FRESH

    def pays(self, rows: int) -> bool:
        return all(rows * shape.group >= LEAST_QUERIES for shape in self._planned.shapes)

    def late_columns(self, rows: int, width: int) -> HostColumns:
        return self._planned.late_columns(rows, width)

    def open_late(self, batch: ForwardBatch) -> AttentionMetadata:
        kinds = self._planned.plans(len(batch.slots), batch.attn_columns, batch.row_room or 1)
        return DecodeMetadata(kinds, early=True, late=True)

    def fill_late(self, batch: ModelWorkerBatch, width: int, columns: HostColumns) -> None:
        rows = len(columns[column_name(0, "joins")]) // width
        self._planned.fill_late(batch, _places(rows, width), columns)

    def _plan_late(self, batch: ForwardBatch) -> AttentionMetadata:
        lens = batch.host.extend_lens
        rows, width = len(lens), batch.row_room or int(lens.max())
        tokens = _places(rows, width)
        if not batch.row_room:
            firsts = np.cumsum(lens, dtype=np.int64) - lens
            tokens = firsts[:, None] + np.minimum(np.arange(width, dtype=np.int64), lens[:, None] - 1)
        columns = self._planned.late_columns(rows, width)
        self._planned.fill_late(batch.host, tokens, columns)
        return DecodeMetadata(self._planned.plans(rows, self._planned.uploaded(columns), width), early=False, late=True)


def _places(rows: int, width: int) -> Longs:
    """Returns the tokens of a step in which every row has room for `width` of them."""
    return np.arange(rows * width, dtype=np.int64).reshape(rows, width)


def make_sgl_kernel(pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]) -> PlannedBackend:
    """Returns the backend for a pool of keys and values, or of latent rows."""
    latent = all(spec.latent_dim is not None for spec in specs)
    return (LatentKernelBackend if latent else SglKernelBackend)(pool, page_table, specs)
