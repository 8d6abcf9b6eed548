"""NothingToPlan: the attention backend of steps without a layer that asks one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch, KvStore
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns, PromptCapture


class NothingToPlan:
    """The attention backend of a model whose layers attend over no keys, and of a kernel that attends by itself."""

    def __init__(self, pool: KvStore) -> None:
        self.kv_pool = pool

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        raise AssertionError("no layer of such a step asks for attention")

    def graph_columns(self, size: int) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        """Does nothing: there are no columns."""

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return None

    def begin_step(self, batch: ForwardBatch) -> None:
        """Does nothing: layers share nothing."""

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        """Does nothing: nothing depends on the lengths."""

    def covers(self, seq_lens: Ints) -> bool:
        return True

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        return NothingToCapture()


class NothingToCapture:
    """The attention of captured prompts of such a model (a `graph.PromptCapture`)."""

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return None

    def begin_step(self, batch: ForwardBatch) -> None:
        """Does nothing: layers share nothing."""

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        """Does nothing: nothing depends on the lengths."""

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        return True
