"""Attention on the CPU with our own C++ kernel: keys and values are read where they lie, and no mask is made.

It takes steps of every kind, in bfloat16. Rows that share pages read them one after another, from the processor's cache
where they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from mysgl_kernel.cpu.attention import AttentionRows, attend
from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.mem_cache.kv_pool.base import KvPool


@dataclass(frozen=True, slots=True)
class CpuMetadata:
    """The rows of a step, cut into work once for each number of query heads that share a KV head."""

    host: ModelWorkerBatch
    by_group: dict[int, AttentionRows] = field(default_factory=dict)

    def rows(self, spec: AttentionSpec) -> AttentionRows:
        group = spec.num_heads // spec.num_kv_heads
        if group not in self.by_group:
            host = self.host
            self.by_group[group] = AttentionRows.of(host.slots, host.seq_lens, host.extend_lens, group)
        return self.by_group[group]


class CpuBackend:
    """Over the pool and the page table, neither of which it changes."""

    def __init__(self, pool: KvPool, page_table: Tensor, *, alike: bool = False) -> None:
        """`alike`: a token gets the same bits whatever the step that it is computed in."""
        self.kv_pool = pool
        self._page_table = page_table
        self._alike = alike

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return CpuMetadata(batch.host)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, CpuMetadata)
        keys, values = self.kv_pool.slots(spec.layer_id)
        return attend(
            q,
            keys,
            values,
            self._page_table,
            metadata.rows(spec),
            page_size=self.kv_pool.page_size,
            window=spec.window,
            scale=spec.scale,
            logit_cap=spec.logit_cap,
            alike=self._alike,
        )


def make_invariant(pool: KvPool, page_table: Tensor) -> CpuBackend:
    """The backend of deterministic inference."""
    return CpuBackend(pool, page_table, alike=True)
