"""SplitBackend: one backend for steps with new prompt tokens, another for decode steps, over the same pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch, KvStore
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import (
    NO_COLUMNS,
    GraphAttentionBackend,
    HostColumns,
    LateBackend,
    PromptCapture,
    PromptGraphBackend,
)
from mysglang.srt.layers.attention.mixed import MixedMetadata, decoding_rows, host_parts, parted


class SplitBackend:
    """Each step goes to the backend for its mode; one of prompts and decoding rows goes to both in parts."""

    def __init__(self, prefill: AttentionBackend, decode: AttentionBackend) -> None:
        """Both backends must read the same pool."""
        self._prefill = prefill
        self._decode = decode

    @property
    def kv_pool(self) -> KvStore:
        return self._decode.kv_pool

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        whole = batch.mode.is_decode or batch.host.high_lens is not None
        decoding = 0 if whole else decoding_rows(batch.host)
        if not decoding:
            return self._backend_for(batch).plan(batch)
        prompts, rest = parted(batch, decoding)
        prompts.attn_metadata, rest.attn_metadata = self._prefill.plan(prompts), self._decode.plan(rest)
        return MixedMetadata(prompts, rest)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        if not isinstance(metadata, MixedMetadata):
            return self._backend_for(batch).forward(q, k, v, spec, batch)
        tokens = len(metadata.prompts.input_ids)
        prompts = self._prefill.forward(q[:tokens], k[:tokens], v[:tokens], spec, metadata.prompts)
        return torch.cat((prompts, self._decode.forward(q[tokens:], k[tokens:], v[tokens:], spec, metadata.decoding)))

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        """Returns the prompt capture of the backend for prompts, if it has one."""
        return self._prefill.prompt_capture(specs) if isinstance(self._prefill, PromptGraphBackend) else None

    def _backend_for(self, batch: ForwardBatch) -> AttentionBackend:
        return self._decode if batch.mode.is_decode else self._prefill


class SplitCapture:
    """Captured steps of prompts and decoding rows, each part with its backend (a `graph.MixedCapture`)."""

    def __init__(self, prefill: PromptCapture, decode: GraphAttentionBackend, decoding: int) -> None:
        """`decoding`: number of decoding rows in a step, padding included."""
        self._prefill = prefill
        self._decode = decode
        self._decoding = decoding

    def columns(self) -> HostColumns:
        return self._decode.graph_columns(self._decoding)

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        self._decode.fill_columns(host_parts(batch, self._decoding)[1], columns)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        prompts, rest = parted(batch, self._decoding)
        prompts.attn_metadata, rest.attn_metadata = self._prefill.open_graph(prompts), self._decode.open_graph(rest)
        return MixedMetadata(prompts, rest)

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, MixedMetadata)
        self._prefill.begin_step(metadata.prompts)
        self._decode.begin_step(metadata.decoding)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        assert isinstance(metadata, MixedMetadata)
        prompts = len(seq_lens) - self._decoding
        self._prefill.plan_replay(metadata.prompts.attn_metadata, seq_lens[:prompts], extend_lens[:prompts])
        self._decode.plan_replay(metadata.decoding.attn_metadata, seq_lens[prompts:])

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        return self._prefill.covers(seq_lens, extend_lens) and self._decode.covers(seq_lens)


class SplitGraphBackend(SplitBackend):
    """A split backend whose decode steps can be captured."""

    def __init__(self, prefill: AttentionBackend, decode: GraphAttentionBackend) -> None:
        super().__init__(prefill, decode)
        self._captured = decode

    def mixed_capture(self, specs: Sequence[AttentionSpec], decoding: int) -> SplitCapture | None:
        """Returns the capture of both parts, if the backend for prompts has one."""
        prompts = self.prompt_capture(specs)
        return None if prompts is None else SplitCapture(prompts, self._captured, decoding)

    def graph_columns(self, size: int) -> HostColumns:
        return self._captured.graph_columns(size)

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        self._captured.fill_columns(batch, columns)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._captured.open_graph(batch)

    def begin_step(self, batch: ForwardBatch) -> None:
        self._captured.begin_step(batch)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        self._captured.plan_replay(metadata, seq_lens)

    def covers(self, seq_lens: Ints) -> bool:
        return self._captured.covers(seq_lens)


@dataclass(frozen=True, slots=True)
class OpenedStep:
    """A captured step of prompts, or one that tries drafts, with the backend that attends in it, and its metadata."""

    backend: AttentionBackend
    metadata: AttentionMetadata

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        """Attends in a layer, as `AttentionBackend.forward` does."""
        return self.backend.forward(q, k, v, spec, replace(batch, attn_metadata=self.metadata))


class LateSplitBackend(SplitGraphBackend):
    """A split backend whose steps with drafts go to that for decode steps, unless there is a prompt beside them, or a
    captured step has so few rows that its plan does not pay.
    """

    def __init__(self, prefill: AttentionBackend, decode: LateGraphBackend) -> None:
        super().__init__(prefill, decode)
        self._late = decode

    def takes_drafts(self, host: ModelWorkerBatch) -> bool:
        return self._late.takes_drafts(host)

    def pays(self, rows: int) -> bool:
        return self._late.pays(rows)

    def late_columns(self, rows: int, width: int) -> HostColumns:
        return self._late.late_columns(rows, width) if self.pays(rows) else NO_COLUMNS

    def open_late(self, batch: ForwardBatch) -> AttentionMetadata:
        if self.pays(len(batch.slots)):
            return OpenedStep(self._late, self._late.open_late(batch))
        return OpenedStep(self._prefill, self._prefill.plan(batch))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        opened = batch.attn_metadata
        if isinstance(opened, OpenedStep):
            return opened.forward(q, k, v, spec, batch)
        return super().forward(q, k, v, spec, batch)

    def fill_late(self, batch: ModelWorkerBatch, width: int, columns: HostColumns) -> None:
        self._late.fill_late(batch, width, columns)

    def _backend_for(self, batch: ForwardBatch) -> AttentionBackend:
        return self._late if self._late.takes_drafts(batch.host) else super()._backend_for(batch)


@runtime_checkable
class LateGraphBackend(GraphAttentionBackend, LateBackend, Protocol):
    """A backend whose decode steps and whose steps with drafts can be captured."""


def split(prefill: AttentionBackend, decode: AttentionBackend) -> AttentionBackend:
    """Combines two backends into one, or returns the one that does both."""
    if prefill is decode:
        return decode
    if isinstance(decode, LateGraphBackend):
        return LateSplitBackend(prefill, decode)
    if isinstance(decode, GraphAttentionBackend):
        return SplitGraphBackend(prefill, decode)
    return SplitBackend(prefill, decode)
