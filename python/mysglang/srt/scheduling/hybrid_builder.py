"""HybridForwardBuilder: the ForwardBuilder of models whose layers with a window have pages of their own."""

from __future__ import annotations

from dataclasses import replace

from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.mem_cache.hybrid_manager import HybridKvManager
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import PrefixGrouper
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.forward_builder import ForwardBuilder
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder


class HybridForwardBuilder(ForwardBuilder):
    """Says beside where these layers keep what the step writes."""

    def __init__(
        self, table: RequestTable, kv: HybridKvManager, sampling: SamplingBuilder, prefix_groups: PrefixGrouper
    ) -> None:
        super().__init__(table, kv, sampling, prefix_groups)
        self._hybrid = kv

    def build(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        step = super().build(batch)
        return replace(step, windows=self._hybrid.columns(step))


def forward_builder(
    table: RequestTable, kv: KvManager, sampling: SamplingBuilder, prefix_groups: PrefixGrouper
) -> ForwardBuilder:
    """The one that fits the memory."""
    if isinstance(kv, HybridKvManager):
        return HybridForwardBuilder(table, kv, sampling, prefix_groups)
    return ForwardBuilder(table, kv, sampling, prefix_groups)
