"""Attention on the CPU with our own C++ kernel: keys and values are read where they lie, and no mask is made.

It takes steps of every kind, in bfloat16, over pages of that or of eight-bit numbers. Rows that share pages read them
one after another, from the processor's cache where they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from mysgl_kernel.cpu.attention import AttentionRows, attend
from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool


@dataclass(frozen=True, slots=True)
class CpuMetadata:
    """The rows of a step, cut into work once for each number of query heads that share a KV head."""

    slots: Longs
    seq_lens: Ints
    extend_lens: Ints
    by_group: dict[int, AttentionRows] = field(default_factory=dict)

    def rows(self, spec: AttentionSpec) -> AttentionRows:
        group = spec.num_heads // spec.num_kv_heads
        if group not in self.by_group:
            self.by_group[group] = AttentionRows.of(self.slots, self.seq_lens, self.extend_lens, group)
        return self.by_group[group]


class CpuBackend:
    """Attention on a CPU, over the pool and the page table, which it reads (a GraphAttentionBackend)."""

    def __init__(self, pool: KvPool, page_table: Tensor, *, alike: bool = False) -> None:
        """`alike`: True if the bits of a token's result may not depend on what else is in the step."""
        self.kv_pool = pool
        self._page_table = page_table
        self._alike = alike

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        host = batch.host
        return CpuMetadata(host.slots, host.seq_lens, host.extend_lens)

    def graph_columns(self, size: int) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        pass

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        """Returns metadata on the tensors that each step is copied to. Only the order of the work remains to be planned
        for each step.
        """
        return CpuMetadata(batch.slots.numpy(), batch.seq_lens.numpy(), batch.extend_lens.numpy())

    def begin_step(self, batch: ForwardBatch) -> None:
        pass

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        assert isinstance(metadata, CpuMetadata)
        for rows in metadata.by_group.values():
            rows.reorder()

    def covers(self, seq_lens: Ints) -> bool:
        return True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, CpuMetadata)
        keys, values = self.kv_pool.slots(spec.layer_id)
        rows, spec = metadata.rows(spec), self.kv_pool.over_stored(spec)
        return attend(
            q,
            keys,
            values,
            self._page_table,
            rows,
            page_size=self.kv_pool.page_size,
            window=spec.window,
            scale=spec.scale,
            logit_cap=spec.logit_cap,
            value_scale=spec.value_scale,
            alike=self._alike,
            chunked=spec.chunked,
            sinks=spec.sinks,
        )


def make_invariant(pool: KvPool, page_table: Tensor) -> CpuBackend:
    """Returns the backend of deterministic inference."""
    return CpuBackend(pool, page_table, alike=True)
