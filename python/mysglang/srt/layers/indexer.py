"""Indexer: which tokens a query attends to, by scores over keys of its own (DeepSeek Sparse Attention, DSA).

    score(query t, token s) = sum over heads h of  w_h(t) * H^-0.5 * relu(q_h(t) . k(s) * d^-0.5)

    q_h     [H, d] from the vectors that the layer's queries are made from
    k       [d] from the hidden state, after a LayerNorm; the store keeps it beside the latent row
    w_h     from the hidden state

The first `rope_dim` numbers of q_h and k are turned. The published code multiplies both with a Hadamard matrix before
it rounds them to eight bits. The matrix is orthogonal, so it changes no product; as transformers, this code rounds
nothing and leaves it out.
DeepSeek-AI, "DeepSeek-V3.2" (arXiv 2512.02556), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, IndexQueries
from mysglang.srt.kernels.rotary import rope
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import LayerNorm
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.quantization.unquantized import Unquantized
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSizes:
    """Sizes of one indexer, the same on all ranks."""

    heads: int
    head_dim: int
    """Size of a key, and of each head's query."""
    rope_dim: int
    """How many numbers of a key and of a query are turned."""
    interleaved: bool
    """True if neighbouring lanes are rotated together, as in `kernels/rotary.py`."""
    eps: float
    """Epsilon of the norm of keys."""


class Chooser(Protocol):
    """The part of a layer that decides which tokens its queries attend to."""

    def store(self, x: Tensor, layer_id: int, batch: ForwardBatch) -> None:
        """Writes the index keys of all tokens, from their hidden states [T, hidden_size]."""
        ...

    def queries(self, x: Tensor, low: Tensor, positions: Tensor) -> IndexQueries:
        """Returns the queries that score keys. x: [N, hidden_size]; low: [N, query_rank] that the layer's queries
        are made from; positions: [N] int64.
        """
        ...


class ChosenElsewhere(nn.Module):
    """Does nothing, in a layer that uses the choice of an earlier layer."""

    def store(self, x: Tensor, layer_id: int, batch: ForwardBatch) -> None:
        """There is nothing to store."""

    def queries(self, x: Tensor, low: Tensor, positions: Tensor) -> IndexQueries:
        raise AssertionError("the choice is made in another layer")


class Indexer(nn.Module):
    """A layer's own indexer. Every rank has the whole of it, since all heads attend to the same tokens.

    What it rounds decides between tokens, so it is never quantized, and heads are weighted in float32.
    """

    def __init__(
        self, hidden_size: int, query_rank: int, sizes: IndexerSizes, rotary: RotaryEmbedding, context: LayerContext
    ) -> None:
        super().__init__()
        plain = replace(context, quant=Unquantized())
        self._sizes = sizes
        self._rotary = rotary
        self.wq_b = ReplicatedLinear(query_rank, sizes.heads * sizes.head_dim, context=plain.under("wq_b"))
        self.wk = ReplicatedLinear(hidden_size, sizes.head_dim, context=plain.under("wk"))
        self.k_norm = LayerNorm(sizes.head_dim, sizes.eps, context)
        precise = replace(plain, dtype=torch.float32)
        self.weights_proj = ReplicatedLinear(hidden_size, sizes.heads, context=precise.under("weights_proj"))

    def store(self, x: Tensor, layer_id: int, batch: ForwardBatch) -> None:
        keys = self.k_norm(self.wk(x))
        self._turn(keys[:, None], batch.positions)
        pool = batch.attn_backend.kv_pool
        pool.store_index(layer_id, batch.out_cache_locs[pool.space_of(layer_id)], keys)

    def queries(self, x: Tensor, low: Tensor, positions: Tensor) -> IndexQueries:
        q = self.wq_b(low).view(len(low), self._sizes.heads, self._sizes.head_dim)
        self._turn(q, positions)
        factor = (self._sizes.heads * self._sizes.head_dim) ** -0.5
        return IndexQueries(q, self.weights_proj(x.float()) * factor)

    def _turn(self, heads: Tensor, positions: Tensor) -> None:
        """Turn the first part of each head [N, heads, head_dim] in place."""
        part = heads[..., : self._sizes.rope_dim]
        rope(part[:, :-1], part[:, -1], positions, self._rotary.cos_sin, self._sizes.interleaved)
