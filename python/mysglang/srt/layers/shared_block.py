"""SharedBlock: attention and an MLP whose weights several layers of a model use, and SharedBlockMixer: one use of it.

    residual stream ─┬─ norm ─ attention ─ norm ─ MLP ─ linear ─┐
    embeddings ──────┘                                          │
    residual stream ────────────────────────────────────────────┴─ norm ─ Mamba-2 mixer

The uses differ by adapters, pairs of small matrices beside a projection. Each use keeps keys and values of its own.
Source: Zamba2; Glorioso et al., "The Zamba2 Suite" (arXiv 2411.15242).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, Rotation
from mysglang.srt.kernels.activation import gated
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import LayerNorm, RMSNorm
from mysglang.srt.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    SectionsLinear,
)
from mysglang.srt.layers.parameter import Section
from mysglang.srt.layers.radix_attention import RadixAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of one block of the whole model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    activation: str
    """Name of the activation in config.json."""
    bias: bool
    """True if the projections of the MLP have biases."""
    uses: tuple[int, ...]
    """Numbers of the uses that have adapters here."""
    rank: int
    """Inner size of each adapter."""
    adapts_attention: bool
    """True if the projections to queries, keys and values have adapters."""


class Adapters(nn.Module):
    """An adapter for each use of a projection, by the number of the use."""

    def __init__(
        self, uses: Sequence[int], input_size: int, rank: int, sections: tuple[Section, ...], context: LayerContext
    ) -> None:
        """`sections`: this rank's part of the projection's output."""
        super().__init__()
        for use in uses:
            inside = context.under(str(use))
            pair = nn.ModuleList(
                (
                    ReplicatedLinear(input_size, rank, context=inside.under("0")),
                    SectionsLinear(rank, sections, context=inside.under("1")),
                )
            )
            self.add_module(str(use), pair)

    def forward(self, x: Tensor, use: int) -> Tensor:
        """Computes the part that one use adds to the projection: [T, input] -> [T, output of this rank]."""
        inwards, outwards = self.get_submodule(str(use)).children()
        out: Tensor = outwards(inwards(x))
        return out


class BlockAttention(nn.Module):
    """The projections of a block's attention, with the adapters of all uses."""

    def __init__(self, input_size: int, hidden_size: int, sizes: BlockSizes, context: LayerContext) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            input_size, sizes.head_dim, sizes.num_heads, sizes.num_kv_heads, context=context.under("qkv_proj")
        )
        self.o_proj = RowParallelLinear(sizes.num_heads * sizes.head_dim, hidden_size, context=context.under("o_proj"))
        self._adapters: tuple[Adapters, ...] = ()
        if sizes.adapts_attention:
            names = [f"linear_{part}_adapter_list" for part in "qkv"]
            self._adapters = tuple(
                Adapters(sizes.uses, input_size, sizes.rank, (section,), context.under(name))
                for name, section in zip(names, self.qkv_proj.sections, strict=True)
            )
            for name, adapters in zip(names, self._adapters, strict=True):
                self.add_module(name, adapters)

    def project(self, x: Tensor, use: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of one use, as slices of one tensor. x: [T, input]."""
        heads = self.qkv_proj(x)
        if self._adapters:
            heads = heads + torch.cat([adapters(x, use) for adapters in self._adapters], dim=-1)
        q, k, v = heads.split(self.qkv_proj.sizes, dim=-1)
        return q, k, v


class BlockMlp(nn.Module):
    """Computes down(act(gate(x)) * up(x)), with the adapters of all uses beside gate and up."""

    def __init__(self, hidden_size: int, sizes: BlockSizes, context: LayerContext) -> None:
        super().__init__()
        inner = sizes.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, (inner, inner), bias=sizes.bias, context=context.under("gate_up_proj")
        )
        name = "gate_up_proj_adapter_list"
        section = Section.split(inner, context.tp.rank, context.tp.size)
        self.gate_up_proj_adapter_list = Adapters(
            sizes.uses, hidden_size, sizes.rank, (section, section), context.under(name)
        )
        self.down_proj = RowParallelLinear(inner, hidden_size, bias=sizes.bias, context=context.under("down_proj"))
        self._activation = gated_activation(sizes.activation)

    def forward(self, x: Tensor, use: int) -> Tensor:
        """Computes the MLP as one use has it: [T, hidden_size] -> the same shape."""
        both = self.gate_up_proj(x) + self.gate_up_proj_adapter_list(x, use)
        out: Tensor = self.down_proj(gated[self._activation](both))
        return out


class SharedBlock(nn.Module):
    """Attention and an MLP, with the names that a checkpoint has for their parts."""

    def __init__(
        self,
        hidden_size: int,
        sizes: BlockSizes,
        norms: tuple[RMSNorm | LayerNorm, RMSNorm | LayerNorm],
        context: LayerContext,
    ) -> None:
        """`norms`: of the block's input, [2 * hidden_size], and of what attention gives, [hidden_size]."""
        super().__init__()
        self.input_layernorm, self.pre_ff_layernorm = norms
        self.self_attn = BlockAttention(2 * hidden_size, hidden_size, sizes, context.under("self_attn"))
        self.feed_forward = BlockMlp(hidden_size, sizes, context.under("feed_forward"))

    def own_spec(self, spec: AttentionSpec) -> AttentionSpec:
        """Returns the spec with this rank's heads, for one that counts those of the whole model."""
        projection = self.self_attn.qkv_proj
        return replace(spec, num_heads=projection.num_heads, num_kv_heads=projection.num_kv_heads)

    def forward(
        self, x: Tensor, use: int, attn: RadixAttention, rotation: Rotation | None, batch: ForwardBatch
    ) -> Tensor:
        """Computes one use: the residual stream [T, hidden_size] -> the same shape, for all tokens of the step. `attn`
        keeps the keys and values of the use.
        """
        assert batch.layer_inputs is not None, "the model adds the embeddings"
        normed = self.input_layernorm(torch.cat((x, batch.layer_inputs), dim=-1))
        q, k, v = self.self_attn.project(normed, use)
        attended = self.self_attn.o_proj(attn(q, k, v, batch, rotation))
        out: Tensor = self.feed_forward(self.pre_ff_layernorm(attended), use)
        return out


class SharedBlockMixer(nn.Module):
    """A mixer whose input is the residual stream and a projection of what a shared block makes of it, normed."""

    def __init__(
        self,
        hidden_size: int,
        block: SharedBlock,
        use: int,
        spec: AttentionSpec,
        rotation: Rotation | None,
        mixer: nn.Module,
        norm: RMSNorm | LayerNorm,
        context: LayerContext,
    ) -> None:
        """`spec` counts the heads of the whole model. `mixer` takes and gives [T, hidden_size]."""
        super().__init__()
        self.attn = RadixAttention(block.own_spec(spec))
        self.linear = ReplicatedLinear(hidden_size, hidden_size, context=context.under("linear"))
        self.input_layernorm = norm
        self.mamba = mixer
        # In a tuple, where torch does not count it again: it is one block of several layers.
        self._block, self._use, self._rotation = (block,), use, rotation

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens go through the
        block, because all of them update the mixer's states.
        """
        (block,) = self._block
        given = block(x, self._use, self.attn, self._rotation, replace(batch, tail=None))
        out: Tensor = self.mamba(self.input_layernorm(x + self.linear(given)), batch)
        return out
