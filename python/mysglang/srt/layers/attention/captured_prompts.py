"""CapturedElsewhere: prompts of one backend whose captured steps attend with another one, over the same pages.

What FlashAttention 2 plans has another shape in each step, so its steps cannot be captured. A short prompt spends its
time in launches, not in attention: replayed with a slower kernel of attention it takes less than launched with a fast
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch, KvStore
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.layers.attention.graph import PromptCapture, prompt_capture
from mysglang.srt.layers.attention.split import OpenedStep


class CapturedElsewhere:
    """An attention backend for prompts: `eager`, and `other` in captured steps that `eager` does not capture."""

    def __init__(self, eager: AttentionBackend, other: AttentionBackend) -> None:
        """Both must read the same pool."""
        self._eager = eager
        self._other = other

    @property
    def kv_pool(self) -> KvStore:
        return self._eager.kv_pool

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._eager.plan(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        opened = batch.attn_metadata
        if isinstance(opened, OpenedStep):
            return opened.forward(q, k, v, spec, batch)
        return self._eager.forward(q, k, v, spec, batch)

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        if (own := prompt_capture(self._eager, specs)) is not None:
            return own
        others = prompt_capture(self._other, specs)
        return None if others is None else OpenedPrompts(self._other, others)


class OpenedPrompts:
    """The captured prompts of a backend, in steps that say so (a `graph.PromptCapture`)."""

    def __init__(self, backend: AttentionBackend, capture: PromptCapture) -> None:
        self._backend = backend
        self._capture = capture

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return OpenedStep(self._backend, self._capture.open_graph(batch))

    def begin_step(self, batch: ForwardBatch) -> None:
        opened = batch.attn_metadata
        assert isinstance(opened, OpenedStep)
        self._capture.begin_step(replace(batch, attn_metadata=opened.metadata))

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        assert isinstance(metadata, OpenedStep)
        self._capture.plan_replay(metadata.metadata, seq_lens, extend_lens)

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        return self._capture.covers(seq_lens, extend_lens)
