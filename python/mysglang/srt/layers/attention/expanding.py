"""Long prompts where latent rows are kept: which rows of a step attend to keys and values of heads instead of these.

A score costs latent_dim + rope_dim products over a latent row and key_dim + rope_dim over a key of a head, and the sum
of values latent_dim instead of value_dim: at the sizes of DeepSeek-V2 and V3 1088 against 320. But the keys and values
of heads must be made, of every token that is seen: latent_dim * (key_dim + value_dim) products for each head. For a
prompt without a cached beginning that is always less. Behind a long beginning both ways cost the same at 171 new tokens
(131072 products for a token, 768 saved for each of its queries).
"""

from __future__ import annotations

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
    Expansion,
    ForwardBatch,
)
from mysglang.srt.layers.attention.lone_rows import lone_rows, rows_alone
from mysglang.srt.layers.attention.page_reader import PageReader
from mysglang.srt.mem_cache.kv_pool.base import KvPool

LONG = 171
"""A row with at least this many new tokens is always expanded."""
FRESH = 16
"""A row without a cached prefix is expanded from this many tokens on. Several shorter rows attend in one call."""


@runtime_checkable
class Expands(AttentionBackend, Protocol):
    """A backend of layers with latent rows that says which rows of a step are cheaper in the other way."""

    def expansion(self, batch: ForwardBatch) -> Expansion | None:
        """Returns how rows are expanded in this step; None if no row is."""
        ...


def expansion_of(backend: AttentionBackend, batch: ForwardBatch) -> Expansion | None:
    """Returns the expansion of a planned step; None with backends that do not expand."""
    return backend.expansion(batch) if isinstance(backend, Expands) else None


class ExpandingBackend:
    """Expands some rows to keys and values of heads, in plain torch, and passes all others to another backend. It reads
    lengths on the host.
    """

    def __init__(
        self, inner: AttentionBackend, pool: KvPool, page_table: Tensor, *, longest: int | None = None
    ) -> None:
        """longest: longer rows are never expanded, since their queries choose what they attend to; None: any may be."""
        self._longest = longest
        self.kv_pool = pool
        self._inner = inner
        self._pages = PageReader(page_table, pool.page_size)

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._inner.plan(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        return self._inner.forward(q, k, v, spec, batch)

    def forward_chosen(self, q: Tensor, rows: Tensor, spec: AttentionSpec, batch: ForwardBatch, ask: Ask) -> Tensor:
        assert isinstance(self._inner, ChoosesKeys), "it is the backend of layers that choose"
        return self._inner.forward_chosen(q, rows, spec, batch, ask)

    def expansion(self, batch: ForwardBatch) -> Expansion | None:
        host = batch.host
        fresh = host.extend_lens == host.seq_lens
        chosen = (host.extend_lens >= LONG) | (fresh & (host.extend_lens >= FRESH))
        if self._longest is not None:
            chosen &= host.seq_lens <= self._longest
        if batch.mode.is_decode or not chosen.any():
            return None
        others = np.flatnonzero(~chosen)
        rows = lone_rows(batch, np.flatnonzero(chosen), self._pages)
        alone = rows_alone(batch, others, self._inner.plan) if len(others) else None
        return Expansion(rows, alone, self.kv_pool.slots)


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
