"""Attention with our own Triton kernels: the portable backend of CUDA, which plans nothing on the host.

All it needs of a step are the batch's tensors, so a captured step can be replayed as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.cuda.attention import SHORT, decode_attention, extend_attention, takes_short
from mysglang.srt.kernels.cuda.latent_attention import latent_decode_attention, latent_extend_attention
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns, PromptCapture
from mysglang.srt.mem_cache.kv_pool.base import KvPool

MOST_LATENT_SCORES = 40_000_000
"""Scores of all heads of a layer in a captured step with latent rows. A score over a latent row costs 768 products more
than one over a key of a head (`expanding.py`), and so many of them about 0.2 ms. Longer steps are not captured, so that
they attend over keys of heads.
"""


@dataclass(frozen=True, slots=True)
class ExtendMetadata:
    """Index of each row's first new token, [R] int64, and the largest number of new tokens of a row."""

    token_starts: Tensor
    max_extend: int


@dataclass(frozen=True, slots=True)
class ShortMetadata:
    """Index of each row's first new token, [R] int64. No row has more than SHORT."""

    token_starts: Tensor
    max_extend: int


@dataclass(frozen=True, slots=True)
class DecodeMetadata:
    """Empty, because each decoding row has exactly one new token."""


class TritonBackend:
    """Paged attention in Triton: decode steps split over the keys, and prompts over the cached prefix."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        if batch.mode.is_decode:
            return DecodeMetadata()
        starts, most = batch.first_tokens(), batch.row_room or int(batch.host.extend_lens.max())
        tries_drafts = batch.host.high_lens is not None and most <= SHORT
        return ShortMetadata(starts, most) if tries_drafts else ExtendMetadata(starts, most)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        keys, values = self.kv_pool.slots(spec.layer_id)
        spec = self.kv_pool.over_stored(spec)
        metadata, page_size = batch.attn_metadata, self.kv_pool.page_size
        rows = (self._page_table, batch.slots, batch.seq_lens)
        latent = spec.latent_dim is not None
        if isinstance(metadata, DecodeMetadata):
            if latent:
                return latent_decode_attention(q, keys, *rows, page_size, spec)
            return decode_attention(q, keys, values, *rows, page_size, spec)
        assert isinstance(metadata, (ExtendMetadata, ShortMetadata))
        if isinstance(metadata, ShortMetadata) and not latent and takes_short(spec):
            short = (batch.extend_lens, metadata.token_starts)
            return decode_attention(q, keys, values, *rows, page_size, spec, extends=short, room=batch.row_room)
        extends = (batch.extend_lens, metadata.token_starts, metadata.max_extend)
        if latent:
            return latent_extend_attention(q, keys, *rows, *extends, page_size, spec, room=batch.row_room)
        return extend_attention(q, keys, values, *rows, *extends, page_size, spec, room=batch.row_room)

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        return TritonPrompts(max((spec.num_heads for spec in specs if spec.latent_dim is not None), default=0))

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


class TritonPrompts:
    """Attention of captured steps with new tokens (a `graph.PromptCapture`): kernels are launched as for one row with
    all tokens, and read on the device which row has which.
    """

    def __init__(self, latent_heads: int) -> None:
        """`latent_heads`: heads of a layer with latent rows; 0: there is no such layer."""
        self._latent_heads = latent_heads

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        starts = torch.zeros(len(batch.slots), dtype=torch.int64, device=batch.slots.device)
        return ExtendMetadata(starts, len(batch.input_ids))

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, ExtendMetadata)
        metadata.token_starts.copy_(batch.first_tokens())

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        """Does nothing: kernels read lengths on the device."""

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        seen = np.dot(seq_lens.astype(np.int64), extend_lens)
        return int(seen) * self._latent_heads <= MOST_LATENT_SCORES
