"""Long prompts where latent rows are kept: which rows of a step attend to keys and values of heads instead of these.

A score costs latent_dim + rope_dim products over a latent row and key_dim + rope_dim over a key of a head, and the sum
of values latent_dim instead of value_dim: at the sizes of DeepSeek-V2 and V3 1088 against 320. But the keys and values
of heads must be made, of every token that is seen: latent_dim * (key_dim + value_dim) products for each head. For a
prompt without a cached beginning that is always less. Behind a long beginning both ways cost the same at 171 new tokens
(131072 products for a token, 768 saved for each of its queries), if all products take the same time.

    RowByRow      rows one after another, with dense attention, as a CPU has it
    packed_rows   several rows at once, with a kernel of their own
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import (
    Ask,
    AttentionBackend,
    AttentionMetadata,
    AttentionSpec,
    ChoosesKeys,
    Expand,
    ExpandedRows,
    Expansion,
    ForwardBatch,
    LoneRow,
)
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.kernels.attention import dense_attention
from mysglang.srt.layers.attention.graph import (
    GraphAttentionBackend,
    HostColumns,
    MixedCapture,
    PromptCapture,
    mixed_capture,
    prompt_capture,
)
from mysglang.srt.layers.attention.lone_rows import lone_rows, rows_alone
from mysglang.srt.layers.attention.page_reader import PageReader
from mysglang.srt.mem_cache.kv_pool.base import KvPool

LONG = 171
"""A row with at least this many new tokens is always expanded."""
FRESH = 16
"""A row without a cached prefix is expanded from this many tokens on. Several shorter rows attend in one call."""
PIECE = 2048
"""Tokens of a cached beginning that keys and values of heads are made of at once."""


@runtime_checkable
class Expands(AttentionBackend, Protocol):
    """A backend of layers with latent rows that says which rows of a step are cheaper in the other way."""

    def expansion(self, batch: ForwardBatch) -> Expansion | None:
        """Returns how rows are expanded in this step; None if no row is."""
        ...


def expansion_of(backend: AttentionBackend, batch: ForwardBatch) -> Expansion | None:
    """Returns the expansion of a planned step; None with backends that do not expand."""
    return backend.expansion(batch) if isinstance(backend, Expands) else None


class Way(Protocol):
    """One way of expanding rows, and from how many new tokens on it is worth it."""

    @property
    def long(self) -> int:
        """New tokens of a row with a cached prefix."""
        ...

    @property
    def fresh(self) -> int:
        """Tokens of a row without one."""
        ...

    def rows(self, batch: ForwardBatch, rows: Longs) -> ExpandedRows:
        """Returns these rows of the step, at least one, whose lengths the host knows."""
        ...


class ExpandingBackend:
    """Expands some rows to keys and values of heads, in one way, and passes all others to another backend. It reads
    lengths on the host, and expands no row in steps whose lengths only the device knows.
    """

    def __init__(self, inner: AttentionBackend, pool: KvPool, way: Way, *, longest: int | None = None) -> None:
        """longest: longer rows are never expanded, since their queries choose what they attend to; None: any may be."""
        self._longest = longest
        self.kv_pool = pool
        self._inner = inner
        self._way = way

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._inner.plan(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        return self._inner.forward(q, k, v, spec, batch)

    def forward_chosen(self, q: Tensor, rows: Tensor, spec: AttentionSpec, batch: ForwardBatch, ask: Ask) -> Tensor:
        assert isinstance(self._inner, ChoosesKeys), "it is the backend of layers that choose"
        return self._inner.forward_chosen(q, rows, spec, batch, ask)

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        """Returns the prompt capture of the inner backend, if it has one: in captured steps no row is expanded."""
        return prompt_capture(self._inner, specs)

    def mixed_capture(self, specs: Sequence[AttentionSpec], decoding: int) -> MixedCapture | None:
        """Returns the inner backend's capture of prompts and decoding rows, if it has one."""
        return mixed_capture(self._inner, specs, decoding)

    def expansion(self, batch: ForwardBatch) -> Expansion | None:
        host, way = batch.host, self._way
        fresh = host.extend_lens == host.seq_lens
        chosen = (host.extend_lens >= way.long) | (fresh & (host.extend_lens >= way.fresh))
        if self._longest is not None:
            chosen &= host.seq_lens <= self._longest
        if batch.mode.is_decode or host.high_lens is not None or not chosen.any():
            return None
        others = np.flatnonzero(~chosen)
        alone = rows_alone(batch, others, self._inner.plan) if len(others) else None
        return Expansion(way.rows(batch, np.flatnonzero(chosen)), alone)


class ExpandingGraphBackend(ExpandingBackend):
    """An expanding backend whose decode steps, in which no row is expanded, can be captured."""

    def __init__(self, inner: GraphAttentionBackend, pool: KvPool, way: Way, *, longest: int | None = None) -> None:
        super().__init__(inner, pool, way, longest=longest)
        self._captured = inner

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


def expanding(inner: AttentionBackend, pool: KvPool, way: Way, *, longest: int | None) -> ExpandingBackend:
    """Returns a backend that expands rows; decode steps can be captured if they can with the inner one."""
    if isinstance(inner, GraphAttentionBackend):
        return ExpandingGraphBackend(inner, pool, way, longest=longest)
    return ExpandingBackend(inner, pool, way, longest=longest)


class RowByRow:
    """Expands one row after another, in plain torch and with dense attention (a `Way`)."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self._pool = pool
        self._pages = PageReader(page_table, pool.page_size)
        self.long, self.fresh = LONG, FRESH

    def rows(self, batch: ForwardBatch, rows: Longs) -> ExpandedRows:
        return LoneExpandedRows(lone_rows(batch, rows, self._pages), self._pool)


@dataclass(frozen=True, slots=True)
class LoneExpandedRows:
    """Rows that are expanded one after another (`ExpandedRows`)."""

    rows: tuple[LoneRow, ...]
    pool: KvPool

    def attend(self, q: Tensor, expand: Expand, spec: AttentionSpec, out: Tensor) -> None:
        cache, _ = self.pool.slots(spec.layer_id)
        for row in self.rows:
            merged = _attend(q[row.tokens].transpose(0, 1), cache, row.keys, expand, spec)
            out[row.tokens] = merged.transpose(0, 1).to(q.dtype)


def _attend(q: Tensor, cache: Tensor, keys: Tensor, expand: Expand, spec: AttentionSpec) -> Tensor:
    """Attends with q [num_heads, n, key_dim + rope_dim], the last n of the tokens at `keys` [L] in the cache. Returns
    [num_heads, n, value_dim] float32.

    Reads what is stored, also for new tokens. Keys and values are expanded a piece at a time, since those of a long
    beginning would take much memory. The new tokens are one piece, of which each query sees a part.
    """
    begin, merged = len(keys) - q.shape[1], MergedParts()
    pieces = [(start, min(start + PIECE, begin)) for start in range(0, begin, PIECE)]
    for start, end in (*pieces, (begin, len(keys))):
        rows = cache.index_select(0, keys[start:end]).squeeze(1)
        main, values = expand(rows)
        whole = torch.cat((main, rows[:, spec.value_dim :].expand(len(main), -1, -1)), dim=-1)
        merged.add(*dense_attention(q, whole, values, spec.scale, start == begin))
    return merged.out


class MergedParts:
    """Attention of n queries over the parts of their keys so far.

    Softmax over a union of keys is the mean of the softmaxes over its parts, weighted with their sums of exponents.
    """

    def __init__(self) -> None:
        self._out: Tensor | None = None
        self._lse = torch.empty(0)

    def add(self, out: Tensor, lse: Tensor) -> None:
        """Merges another part: outputs [heads, n, value_dim] and log-sum-exps [heads, n], float32."""
        if self._out is None:
            self._out, self._lse = out, lse
            return
        both = torch.logaddexp(self._lse, lse)
        self._out = self._out * torch.exp(self._lse - both)[..., None] + out * torch.exp(lse - both)[..., None]
        self._lse = both

    @property
    def out(self) -> Tensor:
        """The merged result: [heads, n, value_dim] float32."""
        assert self._out is not None, "there was a part"
        return self._out
