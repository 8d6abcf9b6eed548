"""Attention with our own Triton kernels: the portable backend of CUDA, which plans nothing on the host.

All it needs of a step are the batch's tensors, so a captured step can be replayed as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.cuda.attention import SHORT, decode_attention, extend_attention, takes_short
from mysglang.srt.kernels.cuda.latent_attention import latent_decode_attention, latent_extend_attention
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool


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
