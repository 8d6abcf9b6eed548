"""ChoosingBackend: latent rows whose queries attend to the keys that an indexer has chosen, in plain torch.

    rows with at most top_k tokens    attend to all of them, with the backend of other latent layers
    longer rows, one after another    index keys of the row -> scores -> the best top_k -> latent rows of these

Among tokens of equal scores the earliest are chosen. So a choice depends on nothing but the tokens before the query:
neither on how a prompt was cut into steps nor on what was cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import (
    Ask,
    AttentionBackend,
    AttentionMetadata,
    AttentionSpec,
    ChosenKeys,
    ForwardBatch,
    IndexQueries,
    LoneRow,
    Tail,
)
from mysglang.srt.layers.attention.lone_rows import lone_rows, rows_alone
from mysglang.srt.layers.attention.page_reader import PageReader
from mysglang.srt.mem_cache.kv_pool.base import KvPool

MOST_NUMBERS = 1 << 25
"""Numbers of a temporary tensor: queries are taken in pieces that need no more."""


@dataclass(frozen=True, slots=True)
class ChoosingMetadata:
    """The rows of a step, divided into short rows and rows whose queries choose keys."""

    short: Tail | None
    """Tokens of the rows that attend to all keys, and these rows as a planned step; None: there are none."""
    rows: tuple[LoneRow, ...]
    """The rows whose queries choose."""
    choices: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """Layer -> what its indexer has chosen in this step: for each row, [n, top_k] int64 positions of keys."""


class ChoosingBackend:
    """Attends over latent rows in the pool: a query attends only to the keys that an indexer chose. The backend reads
    lengths on the host; see
    `forward_batch.ChoosesKeys`.
    """

    def __init__(self, inner: AttentionBackend, pool: KvPool, page_table: Tensor, *, top_k: int) -> None:
        """inner: the backend of short rows."""
        self.kv_pool = pool
        self._inner = inner
        self._pages = PageReader(page_table, pool.page_size)
        self._top_k = top_k

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        host = batch.host
        long = host.seq_lens > self._top_k
        rows = lone_rows(batch, np.flatnonzero(long), self._pages)
        return ChoosingMetadata(
            None if long.all() else rows_alone(batch, np.flatnonzero(~long), self._inner.plan), rows
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        raise AssertionError("in a model with chosen keys, the queries of all layers choose")

    def forward_chosen(self, q: Tensor, rows: Tensor, spec: AttentionSpec, batch: ForwardBatch, ask: Ask) -> Tensor:
        """Attends to chosen keys only. q: [T, num_heads * head_dim] over latent rows; rows: [T, head_dim]. Returns
        [T, num_heads * value_dim].
        """
        metadata, chosen = batch.attn_metadata, spec.chosen
        assert isinstance(metadata, ChoosingMetadata) and chosen is not None
        out = q.new_empty(len(q), spec.num_heads * spec.value_dim)
        if metadata.short is not None:
            at, step = metadata.short.tokens, metadata.short.step
            assert step is not None
            own = rows.index_select(0, at)
            attended = self._inner.forward(q.index_select(0, at), own, own[:, : spec.value_dim], spec, step)
            out.index_copy_(0, at, attended)
        if chosen.layer == spec.layer_id:
            metadata.choices[chosen.layer] = tuple(self._choose(row, chosen, ask) for row in metadata.rows)
        if metadata.rows:
            cache, _ = self.kv_pool.slots(spec.layer_id)
            for row, positions in zip(metadata.rows, metadata.choices[chosen.layer], strict=True):
                out[row.tokens] = attend_chosen(q[row.tokens], cache.squeeze(1), row.keys, positions, spec)
        return out

    def _choose(self, row: LoneRow, chosen: ChosenKeys, ask: Ask) -> Tensor:
        """Returns [n, top_k] int64: positions of the keys that the row's new tokens attend to."""
        tokens = torch.arange(row.tokens.start, row.tokens.stop, device=row.keys.device)
        keys = self.kv_pool.index_slots(chosen.layer).index_select(0, row.keys)
        return choose_keys(ask(tokens), keys, chosen.top_k)


def choose_keys(queries: IndexQueries, keys: Tensor, top_k: int) -> Tensor:
    """Returns [n, top_k] int64: positions of the keys [L, index_dim] with the best scores for the queries of the last n
    tokens. L is at least top_k. For queries that see fewer keys, positions after theirs fill up.
    """
    q, weights = queries
    starts = range(0, len(q), max(1, MOST_NUMBERS // (q.shape[1] * len(keys))))
    first, at = len(keys) - len(q), torch.arange(len(keys), device=keys.device)
    wide, found = keys.float().T, []
    for start in starts:
        own = slice(start, start + starts.step)
        scores = torch.matmul(q[own].float(), wide).relu_()
        scores = torch.matmul(weights[own].unsqueeze(1), scores).squeeze(1)
        seen_by = first + start + torch.arange(len(scores), device=keys.device)
        scores = scores.masked_fill_(at > seen_by[:, None], float("-inf"))
        # Stable: which of equal scores are taken must not depend on how many keys there are.
        found.append(scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k])
    return torch.cat(found)


def attend_chosen(q: Tensor, cache: Tensor, keys: Tensor, positions: Tensor, spec: AttentionSpec) -> Tensor:
    """Attention of one row's last n tokens over chosen latent rows. Returns [n, num_heads * value_dim].

    q: [n, num_heads * head_dim]; cache: [KV slots, head_dim]; keys: [L] int64 KV slots; positions: [n, top_k] int64
    among them, of which a query attends to those that are not behind it.
    """
    n, top_k = positions.shape
    heads = q.view(n, spec.num_heads, spec.head_dim)
    last = len(keys) - n + torch.arange(n, device=q.device)
    behind = (positions > last[:, None])[:, None]
    size = max(1, MOST_NUMBERS // (top_k * max(spec.head_dim, spec.num_heads)))
    out = torch.empty(n, spec.num_heads, spec.value_dim, dtype=q.dtype, device=q.device)
    for start in range(0, n, size):
        own = slice(start, start + size)
        rows = cache[keys[positions[own]]].to(q.dtype)
        scores = torch.matmul(heads[own], rows.mT).float() * spec.scale
        weights = scores.masked_fill_(behind[own], float("-inf")).softmax(dim=-1)
        out[own] = torch.matmul(weights.to(q.dtype), rows[..., : spec.value_dim])
    return out.flatten(1)
