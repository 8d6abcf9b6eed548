"""Attention on CUDA whose results do not depend on what else a step computes; it plans nothing on the host.

All it needs of a step are the batch's tensors, so a captured step can be replayed as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.cuda.invariant_attention import invariant_attention
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool


@dataclass(frozen=True, slots=True)
class InvariantMetadata:
    """Index of each row's first new token, [R] int64, and the largest number of new tokens of a row."""

    token_starts: Tensor
    max_extend: int


class InvariantTritonBackend:
    """Deterministic attention with Triton: one kernel for every kind of step."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        if batch.mode.is_decode:
            return InvariantMetadata(torch.arange(len(batch.slots), device=batch.slots.device), 1)
        return InvariantMetadata(batch.first_tokens(), batch.row_room or int(batch.host.extend_lens.max()))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        keys, values = self.kv_pool.slots(spec.layer_id)
        spec = self.kv_pool.over_stored(spec)
        metadata = batch.attn_metadata
        assert isinstance(metadata, InvariantMetadata)
        return invariant_attention(
            q,
            keys,
            values,
            self._page_table,
            batch.slots,
            batch.seq_lens,
            batch.extend_lens,
            metadata.token_starts,
            metadata.max_extend,
            self.kv_pool.page_size,
            spec,
            decoding=batch.mode.is_decode,
            room=batch.row_room,
        )

    def graph_columns(self, size: int) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        pass

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return self.plan(batch)

    def begin_step(self, batch: ForwardBatch) -> None:
        pass

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        pass

    def covers(self, seq_lens: Ints) -> bool:
        return True
