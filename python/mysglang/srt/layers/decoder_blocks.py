"""The blocks of nearly every decoder: attention over pages, and a gated MLP.

Sizes are the whole model's; the linears take this rank's share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, Rotation
from mysglang.srt.kernels.activation import sigmoid_gated
from mysglang.srt.kernels.op import head_view
from mysglang.srt.kernels.rotary import rope
from mysglang.srt.layers.activation import gated_activation, plain_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import (
    ColumnParallelLinear,
    GatedColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from mysglang.srt.layers.parameter import Section, WeightParameter, put_in_order
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding


class FeedForward(nn.Module):
    """The part of a layer that treats each token by itself: x [W, hidden_size] -> the same shape, which may be x
    itself, used up.
    """

    def in_step(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns what it makes of the wanted tokens of a step, [W, hidden_size]."""
        out: Tensor = self(x)
        return out


class GatedMLP(FeedForward):
    """Computes down(act(gate(x)) * up(x))."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, act: str, *, bias: bool = False, context: LayerContext
    ) -> None:
        super().__init__()
        self.gate_up_proj = GatedColumnParallelLinear(
            hidden_size, intermediate_size, gated_activation(act), bias=bias, context=context.under("gate_up_proj")
        )
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, bias=bias, context=context.under("down_proj")
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.gate_up_proj(x))
        return out

    def dense_weights(self) -> tuple[Tensor, Tensor] | None:
        """Returns the weights of gate and up, and of down, as `linear` takes them; None if they are quantized or have
        biases.
        """
        return dense_weights(self.gate_up_proj, self.down_proj)


def dense_weights(
    first: ColumnParallelLinear | GatedColumnParallelLinear, second: RowParallelLinear
) -> tuple[Tensor, Tensor] | None:
    """Returns both weights as `linear` takes them; None if they are quantized or have biases."""
    inwards, outwards = first.method.dense_weight(first), second.method.dense_weight(second)
    if inwards is None or outwards is None or first.bias is not None or second.bias is not None:
        return None
    return inwards, outwards


class PlainMLP(FeedForward):
    """Computes down(act(up(x))), with the checkpoint's names for both."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        act: str,
        names: tuple[str, str],
        *,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        super().__init__()
        up, down = names
        self._activation = plain_activation(act)
        first = ColumnParallelLinear(hidden_size, intermediate_size, bias=bias, context=context.under(up))
        second = RowParallelLinear(intermediate_size, hidden_size, bias=bias, context=context.under(down))
        self.add_module(up, first)
        self.add_module(down, second)
        # In a tuple, where torch does not count them again.
        self._linears = first, second

    def forward(self, x: Tensor) -> Tensor:
        up, down = self._linears
        out: Tensor = down(self._activation(up(x)))
        return out

    def dense_weights(self) -> tuple[Tensor, Tensor] | None:
        """Both weights as `linear` takes them; None if they are quantized or have biases."""
        return dense_weights(*self._linears)


@dataclass(frozen=True, slots=True)
class Tempering:
    """Scales queries by position: the query at position p is multiplied by 1 + weight * ln(1 + floor((p + first) /
    length)). Source: Llama 4.
    """

    weight: float
    length: float
    first: int

    def factors(self, positions: Tensor) -> Tensor:
        """Returns the factor for the query at each position: [T] int64 -> [T, 1] float32."""
        spans = torch.floor((positions + self.first).float() / self.length)
        return (torch.log1p(spans) * self.weight + 1.0)[:, None]


class ScaledMLP(FeedForward):
    """Computes scale * down(act(gate_scale * gate(x)) * up(x))."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        act: str,
        scales: tuple[float, float],
        *,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        """`scales`: factor of the gate, and factor of the MLP's output."""
        super().__init__()
        self._activation, self._scales = plain_activation(act), scales
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, (intermediate_size, intermediate_size), bias=bias, context=context.under("gate_up_proj")
        )
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, bias=bias, context=context.under("down_proj")
        )

    def forward(self, x: Tensor) -> Tensor:
        of_gate, of_all = self._scales
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(self._activation(gate * of_gate) * up)
        return out * of_all


class PagedAttention(nn.Module):
    """An attention layer: projections, optional norms of heads and rotary positions, attention, and the output
    projection.

    With an output gate, the projection to queries has the gate of each head after its query, and what a head gives is
    multiplied by sigmoid(gate) before the output projection.
    """

    def __init__(
        self,
        hidden_size: int,
        spec: AttentionSpec,
        rotary: RotaryEmbedding | None,
        *,
        head_norms: Callable[[], RMSNorm] | None = None,
        whole_norms: Callable[[Section], RMSNorm] | None = None,
        norms_turned: bool = False,
        value_norm: Callable[[], RMSNorm] | None = None,
        values_from_keys: bool = False,
        tempering: Tempering | None = None,
        sinks: bool = False,
        fused_by_head: bool = False,
        bias: bool = False,
        output_bias: bool = False,
        output_gate: bool = False,
        context: LayerContext,
    ) -> None:
        """`spec` counts the heads of the whole model. `head_norms` makes a norm of heads, for queries and for keys.
        `whole_norms` makes one of all heads of the queries together, and of the keys, from this rank's part of them.
        `norms_turned`: norms are of heads that are turned already. `value_norm` makes one of heads of values, which
        with `values_from_keys` are the keys before they are normed and turned. `tempering` scales queries by their
        positions.
        `sinks`: the layer has a parameter of that name, see `AttentionSpec`.
        """
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            hidden_size,
            spec.head_dim,
            spec.num_heads,
            spec.num_kv_heads,
            query_dim=2 * spec.head_dim if output_gate else None,
            fused_by_head=fused_by_head,
            values=not values_from_keys,
            bias=bias,
            context=context.under("qkv_proj"),
        )
        self.output_gate = output_gate
        self.o_proj = RowParallelLinear(
            spec.num_heads * spec.head_dim, hidden_size, bias=output_bias, context=context.under("o_proj")
        )
        self.rotary = rotary
        own = replace(spec, num_heads=self.qkv_proj.num_heads, num_kv_heads=self.qkv_proj.num_kv_heads)
        if sinks:
            heads = Section.split(spec.num_heads, context.tp.rank, context.tp.size)
            self.sinks = WeightParameter((heads.size,), (heads,), dtype=torch.float32)
            own = replace(own, sinks=self.sinks)
        self.attn = RadixAttention(own)
        self.tempering = tempering
        assert value_norm is not None or not values_from_keys, "keys are turned where they lie"
        self.v_norm = None if value_norm is None else value_norm()
        self.q_norm = self.k_norm = None
        self.norms_turned = norms_turned and rotary is not None and head_norms is not None
        self.norms_before = whole_norms is not None or (rotary is None and head_norms is not None)
        if head_norms is not None:
            self.q_norm, self.k_norm = head_norms(), head_norms()
        if whole_norms is not None:
            queries, keys, *_ = self.qkv_proj.sections
            self.q_norm, self.k_norm = whole_norms(queries), whole_norms(keys)
        self._places: Tensor | None = None
        """Places of a value's dimensions, where values are keys and these are in another order."""
        order = None if rotary is None else rotary.order
        self._put_in_order(order)
        if values_from_keys and order is not None:
            self._places = order.argsort().to(torch.get_default_device())

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Attends: [T, hidden_size] -> [W, hidden_size], for the wanted tokens."""
        q, k, v = self.qkv_proj.forward_split(x)
        if self._places is not None:
            v = head_view(v, self.attn.spec.head_dim).index_select(-1, self._places).flatten(1)
        if self.v_norm is not None:
            v = self._normed(v, self.v_norm)
        gate = None
        if self.output_gate:
            q, gate = q.chunk(2, dim=-1)
        if self.norms_before:
            # Heads that are turned are normed by the kernel that turns them; these are not, or not each alone.
            assert self.q_norm is not None and self.k_norm is not None
            q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        rotation = self.rotation()
        if self.norms_turned:
            assert rotation is not None and self.q_norm is not None and self.k_norm is not None
            q, k = self._turned(q, k, batch.positions, rotation)
            q, k, rotation = self._normed(q, self.q_norm), self._normed(k, self.k_norm), None
        if self.tempering is not None:
            q = q * self.tempering.factors(batch.positions).to(q.dtype)
        attended = self.attn(q, k, v, batch, rotation)
        if gate is not None:
            attended = sigmoid_gated(attended, batch.wanted(gate))
        out: Tensor = self.o_proj(attended)
        return out

    def _normed(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """Norms [T, heads * head_dim], each head by itself, or all together if the norm has that many weights."""
        normed: Tensor = norm(x.reshape(len(x), -1, len(norm.gain)))
        return normed.flatten(1)

    def _turned(self, q: Tensor, k: Tensor, positions: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys, [T, heads * head_dim] each."""
        dim = self.attn.spec.head_dim
        heads = torch.cat((head_view(q, dim), head_view(k, dim)), dim=1)
        rope(heads[:, :-1], heads[:, -1], positions, rotation.cos_sin, False)
        queries = q.shape[1] // dim
        return heads[:, :queries].flatten(1), heads[:, queries:].flatten(1)

    def _put_in_order(self, order: Tensor | None) -> None:
        """Declares the order in which the dimensions of queries and keys are loaded, so that a step reorders none."""
        queries = order
        if self.output_gate:
            # The queries of all heads before their gates, which belong to values and keep their order.
            dim = self.attn.spec.head_dim
            own = torch.arange(dim, device="cpu")
            heads = torch.arange(self.qkv_proj.num_heads, device="cpu")[:, None] * 2 * dim
            queries = torch.cat(((heads + (own if order is None else order)).flatten(), (heads + dim + own).flatten()))
        put_in_order(self.qkv_proj, queries, order, *(None for _ in self.qkv_proj.sections[2:]))
        for norm in (self.q_norm, self.k_norm):
            if norm is not None and order is not None:
                put_in_order(norm, order)

    def rotation(self) -> Rotation | None:
        """Returns the rotation of heads before attention; None without rotary positions."""
        if self.rotary is None:
            return None
        if self.q_norm is None or self.k_norm is None or self.norms_before or self.norms_turned:
            return Rotation(self.rotary.cos_sin)
        return Rotation(self.rotary.cos_sin, (self.q_norm.gain, self.k_norm.gain, self.q_norm.eps))


class SumOfMixers(nn.Module):
    """Adds the outputs of several mixers of the same input, each scaled before and after."""

    def __init__(self, mixers: Mapping[str, nn.Module], scales: Sequence[tuple[float, float]]) -> None:
        """`mixers`: by their names in a checkpoint. `scales`: for each mixer, a factor of its input and a factor of its
        output.
        """
        super().__init__()
        for name, mixer in mixers.items():
            self.add_module(name, mixer)
        # In a tuple, where torch does not count them again.
        self._parts = tuple((mixer, *factors) for mixer, factors in zip(mixers.values(), scales, strict=True))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Adds the results of all mixers: [T, hidden_size] -> [W, hidden_size], for the wanted tokens."""
        found = [mixer(x * before, batch) * behind for mixer, before, behind in self._parts]
        total: Tensor = sum(found[1:], found[0])
        return total
