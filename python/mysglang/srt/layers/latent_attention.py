"""Multi-head latent attention (MLA): a token keeps one row for all heads of a layer, from which keys and values follow.

    row      [ c: latent_dim numbers | k_rope: rope_dim numbers ]
    head h   key [ K_h c | k_rope ]      value V_h c      K_h, V_h: its parts of kv_b_proj

No key of a head is made. Its query goes to the rows' space instead, once, and the sum of rows comes back from there:

    [ q | q_rope ] . [ K_h c | k_rope ]  =  [ K_h^T q | q_rope ] . row        sum of p V_h c  =  V_h (sum of p c)

So attention is that of one key-value head, whose values are the beginnings of its keys (`AttentionSpec.latent_dim`).
For many new tokens at once it is cheaper to make keys and values of heads after all; `attention/expanding.py` says
when.
DeepSeek-AI, "DeepSeek-V2" (arXiv 2405.04434), section 2.1 and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import (
    Ask,
    AttentionSpec,
    ChoosesKeys,
    Expansion,
    ForwardBatch,
    IndexQueries,
)
from mysglang.srt.kernels.beside import beside
from mysglang.srt.kernels.gemm import heads_linear
from mysglang.srt.kernels.latent import absorb_queries, norm_and_turn
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.indexer import Chooser
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import ColumnParallelLinear, RowParallelLinear, SectionsLinear
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding

AttendOthers: TypeAlias = Callable[[Tensor, ForwardBatch], Tensor]
"""(tokens [N] of the rows that are not expanded, these rows as a step) -> [N, num_heads * value_dim]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Sizes of one layer, the same on all ranks."""

    query_rank: int | None
    """Numbers that queries are made from; None: they are made from the hidden state."""
    key_dim: int
    """Size of each head's key without the rotated part."""
    value_dim: int
    """Size of each head's value."""
    interleaved: bool
    """True if neighbouring lanes are rotated together, as in `kernels/rotary.py`."""


class HeadsOfRows(nn.Module):
    """Makes keys and values of this rank's heads from rows, by the parts K_h and V_h of `weight`.

    The checkpoint's matrix [num_heads * (key_dim + value_dim), latent_dim] is taken apart once it is loaded. It is
    never quantized: no quantized product multiplies a matrix head by head, and it is small beside the others.
    """

    def __init__(self, num_heads: int, latent_dim: int, sizes: LatentSizes, context: LayerContext) -> None:
        """`num_heads` counts the heads of the whole model, not of this rank."""
        super().__init__()
        heads = Section.split(num_heads, context.tp.rank, context.tp.size)
        width = sizes.key_dim + sizes.value_dim
        rows = Section(heads.full * width, heads.start * width, heads.size * width)
        self.num_heads = heads.size
        self._shape = (heads.size, width, latent_dim)
        self._key_dim = sizes.key_dim
        self.register_parameter("weight", WeightParameter((rows.size, latent_dim), (rows,), dtype=context.dtype))

    def absorb(self, q: Tensor) -> Tensor:
        """Multiplies the first part of each query with K_h^T: [T, num_heads, key_dim + rope_dim] -> [T, num_heads *
        (latent_dim + rope_dim)].
        """
        return absorb_queries(q, self._parts()[0])

    def values(self, sums: Tensor) -> Tensor:
        """Multiplies sums of the latent part of rows with V_h: [T, num_heads, latent_dim] -> [T, num_heads,
        value_dim].
        """
        return heads_linear(sums, self._parts()[1])

    def expand(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Expands rows [L, latent_dim + rope_dim] to what is made of them for each head: keys [num_heads, L, key_dim],
        without the part that all heads share, and values [num_heads, L, value_dim].
        """
        up_keys, up_values = self._parts()
        latent = rows[:, : self._shape[2]].expand(self.num_heads, -1, -1)
        return torch.bmm(latent, up_keys), torch.bmm(latent, up_values.mT)

    def process_weights_after_loading(self) -> None:
        if isinstance(self.weight, WeightParameter):
            keys, values = self._parts()
            self.up_keys, self.up_values = keys.contiguous(), values.contiguous()
            del self.weight

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        if "weight" not in self._parameters:
            self.weight: WeightParameter
            self.register_parameter("weight", layouts["weight"].filled(self.values_of("weight")))
            del self.up_keys, self.up_values

    def values_of(self, name: str) -> Tensor:
        if "weight" in self._parameters:
            return self.weight
        return torch.cat((self.up_keys.transpose(1, 2), self.up_values), dim=1).flatten(0, 1)

    def _parts(self) -> tuple[Tensor, Tensor]:
        """Returns K_h^T [num_heads, latent_dim, key_dim] and V_h [num_heads, value_dim, latent_dim]."""
        if "weight" not in self._parameters:
            return self.up_keys, self.up_values
        whole = self.weight.view(self._shape)
        return whole[:, : self._key_dim].transpose(1, 2), whole[:, self._key_dim :]


class LatentAttention(nn.Module):
    """Projections to queries and to rows, attention over rows, projection of the heads' values."""

    def __init__(
        self,
        hidden_size: int,
        spec: AttentionSpec,
        sizes: LatentSizes,
        rotary: RotaryEmbedding | None,
        *,
        norm: Callable[[int], RMSNorm],
        bias: bool,
        output_bias: bool,
        context: LayerContext,
    ) -> None:
        """`spec` counts the heads of the whole model. `rotary`: None if nothing is turned. `norm` makes the norms of so
        many numbers. `bias`: whether the projections of the hidden state have one, but for a direct one to queries.
        Without, they are one.
        """
        super().__init__()
        latent_dim = spec.value_dim
        rope_dim = spec.head_dim - latent_dim
        queries = spec.num_heads * (sizes.key_dim + rope_dim)
        self._sizes = sizes
        rank = sizes.query_rank
        heads = Section.split(queries, context.tp.rank, context.tp.size)
        first, row = heads if rank is None else Section(rank, 0, rank), Section(spec.head_dim, 0, spec.head_dim)
        self._widths = (first.size, row.size)
        if bias:
            self._project = self._apart
            if rank is None:
                self.q_proj = SectionsLinear(hidden_size, (first,), context=context.under("q_proj"))
            else:
                self.q_a_proj = SectionsLinear(hidden_size, (first,), bias=True, context=context.under("q_a_proj"))
            under = context.under("kv_a_proj_with_mqa")
            self.kv_a_proj_with_mqa = SectionsLinear(hidden_size, (row,), bias=True, context=under)
        else:
            self._project = self._together
            self.in_proj = SectionsLinear(hidden_size, (first, row), context=context.under("in_proj"))
        if rank is not None:
            self.q_a_layernorm = norm(rank)
            self.q_b_proj = ColumnParallelLinear(rank, queries, context=context.under("q_b_proj"))
        self.kv_a_layernorm = norm(latent_dim)
        self.kv_b_proj = HeadsOfRows(spec.num_heads, latent_dim, sizes, context.under("kv_b_proj"))
        self.o_proj = RowParallelLinear(
            spec.num_heads * sizes.value_dim, hidden_size, bias=output_bias, context=context.under("o_proj")
        )
        self.rotary = rotary
        self.attn = RadixAttention(replace(spec, num_heads=self.kv_b_proj.num_heads))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Attends: [T, hidden_size] -> [W, hidden_size], for the wanted tokens."""
        q, rows = self._stored(*self._projected(x), batch)
        if batch.tail is not None and batch.tail.step is not None:
            heads = self._attend(batch.wanted(q), rows, batch.tail.step)
        elif batch.expanded is None:
            heads = batch.wanted(self._attend(q, rows, batch))
        else:
            others = partial(self._attend_others, q, rows)
            heads = batch.wanted(self._attend_expanded(q, batch.expanded, others))
        out: Tensor = self.o_proj(heads)
        return out

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Projects [T, hidden_size] to the queries, or to what they are made from, [T, query_rank], and to the rows
        [T, latent_dim + rope_dim], neither normed nor turned.
        """
        first, rows = self._project(x)
        return (first if self._sizes.query_rank is None else self.q_a_layernorm(first)), rows

    def _together(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, rows = self.in_proj(x).split(self._widths, dim=-1)
        return first, rows

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = beside(x, lambda: self.kv_a_proj_with_mqa(x))
        first = self.q_proj if self._sizes.query_rank is None else self.q_a_proj
        return first(x), rows()

    def _stored(self, first: Tensor, rows: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Stores the latent rows of what was projected.

        Returns the queries, [T, num_heads, key_dim + rope_dim], and the rows.
        """
        latent_dim, key_dim = self.attn.spec.value_dim, self._sizes.key_dim
        queries = first if self._sizes.query_rank is None else self.q_b_proj(first)
        q = queries.view(len(rows), self.kv_b_proj.num_heads, -1)
        gain, eps = self.kv_a_layernorm.gain, self.kv_a_layernorm.eps
        if self.rotary is None:
            latent = rows[:, :latent_dim]
            latent.copy_(rms_norm(latent, gain, eps))
        else:
            turned, cos_sin, interleaved = q[..., key_dim:], self.rotary.cos_sin, self._sizes.interleaved
            norm_and_turn(turned, rows, gain, eps, batch.positions, cos_sin, interleaved)
        self.attn.store(rows, rows[:, :latent_dim], batch)
        return q, rows

    def _attend(self, q: Tensor, rows: Tensor, step: ForwardBatch) -> Tensor:
        """Attends over the latent rows. q: [N, num_heads, key_dim + rope_dim] of the step -> [N, num_heads *
        value_dim].
        """
        spec, up = self.attn.spec, self.kv_b_proj
        sums = step.attn_backend.forward(up.absorb(q), rows, rows[:, : spec.value_dim], spec, step)
        return up.values(sums.view(len(sums), up.num_heads, -1)).flatten(1)

    def _attend_others(self, q: Tensor, rows: Tensor, tokens: Tensor, step: ForwardBatch) -> Tensor:
        """Attends with the tokens [N] of rows that are not expanded, which make up this step."""
        return self._attend(q[tokens], rows, step)

    def _attend_expanded(self, q: Tensor, expansion: Expansion, others: AttendOthers) -> Tensor:
        """Attends, with some rows over expanded keys and values: [T, num_heads, key_dim + rope_dim] -> [T, num_heads *
        value_dim].
        """
        up = self.kv_b_proj
        out = q.new_empty(len(q), up.num_heads, self._sizes.value_dim)
        expansion.rows.attend(q, up.expand, self.attn.spec, out)
        if (rest := expansion.others) is not None:
            assert rest.step is not None, "they are a step"
            out[rest.tokens] = others(rest.tokens, rest.step).view(-1, *out.shape[1:])
        return out.flatten(1)


class ChosenLatentAttention(LatentAttention):
    """Latent attention of queries that choose the tokens they attend to (DSA); `layers/indexer.py` says how.

    The step's plan says which rows choose: `forward_batch.ChoosesKeys`. The others attend as in any latent layer. The
    last layer attends with all tokens, also where only those of the tail are wanted: the choice of a layer before it
    is of all tokens.
    """

    indexer: Chooser

    def __init__(
        self,
        hidden_size: int,
        spec: AttentionSpec,
        sizes: LatentSizes,
        rotary: RotaryEmbedding,
        *,
        norm: Callable[[int], RMSNorm],
        bias: bool,
        output_bias: bool,
        indexer: Chooser,
        context: LayerContext,
    ) -> None:
        """indexer: what chooses the tokens; the other arguments are those of `LatentAttention`."""
        super().__init__(
            hidden_size, spec, sizes, rotary, norm=norm, bias=bias, output_bias=output_bias, context=context
        )
        self.indexer = indexer

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Computes attention: [T, hidden_size] -> [W, hidden_size], for the wanted tokens."""
        low, rows = self._projected(x)
        q, rows = self._stored(low, rows, batch)
        self.indexer.store(x, self.attn.spec.layer_id, batch)

        def choose(tokens: Tensor) -> IndexQueries:
            return self.indexer.queries(x[tokens], low[tokens], batch.positions[tokens])

        def others(tokens: Tensor, step: ForwardBatch) -> Tensor:
            return self._attend_chosen(q[tokens], rows[tokens], step, lambda those: choose(tokens[those]))

        if batch.expanded is None:
            heads = self._attend_chosen(q, rows, batch, choose)
        else:
            heads = self._attend_expanded(q, batch.expanded, others)
        out: Tensor = self.o_proj(batch.wanted(heads))
        return out

    def _attend_chosen(self, q: Tensor, rows: Tensor, step: ForwardBatch, ask: Ask) -> Tensor:
        """Attends over chosen rows; shapes are those of `_attend`."""
        backend, up = step.attn_backend, self.kv_b_proj
        assert isinstance(backend, ChoosesKeys), "another backend would attend to all tokens"
        sums = backend.forward_chosen(up.absorb(q), rows, self.attn.spec, step, ask)
        return up.values(sums.view(len(sums), up.num_heads, -1)).flatten(1)
