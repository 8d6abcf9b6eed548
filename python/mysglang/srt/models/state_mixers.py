"""Mixers that keep a state of a fixed size for each request, built from their plans."""

from __future__ import annotations

from torch import nn

from mysglang.srt.configs.mixer_plan import (
    ConvolutionPlan,
    KimiDeltaPlan,
    LightningPlan,
    LinearAttentionPlan,
    Mamba2Plan,
    MambaPlan,
)
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear_attention.gated_convolution import GatedConvolution
from mysglang.srt.layers.linear_attention.gated_delta_net import (
    DeltaSizes,
    GatedDeltaNet,
    GroupedDeltaNet,
    SplitDeltaNet,
)
from mysglang.srt.layers.linear_attention.kimi_delta_attention import KimiDeltaAttention, KimiDeltaSizes
from mysglang.srt.layers.linear_attention.lightning_attention import LightningAttention
from mysglang.srt.layers.linear_attention.mamba import MambaChannels, MambaMixer
from mysglang.srt.layers.linear_attention.mamba2 import GateAlone, Mamba2Mixer, MambaSizes, gated_norm
from mysglang.srt.layers.parameter import Section
from mysglang.srt.models.decoder_layers import head_norm_of
from mysglang.srt.models.mixers import CommonParts


def linear_attention_of(
    plan: LinearAttentionPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> GatedDeltaNet:
    """Returns the gated delta net of the layer with this number. Positions are in its state, so nothing is turned."""
    sizes = DeltaSizes(
        plan.key_heads, plan.value_heads, plan.key_dim, plan.value_dim, plan.kernel, strongest=plan.strongest
    )
    kind = GroupedDeltaNet if plan.grouped else SplitDeltaNet
    return kind(index, hidden_size, sizes, plan.norm.eps, context)


def kimi_delta_of(
    plan: KimiDeltaPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> KimiDeltaAttention:
    """Returns the delta net with decays by channel of the layer with this number."""
    sizes = KimiDeltaSizes(plan.heads, plan.head_dim, plan.kernel)
    return KimiDeltaAttention(index, hidden_size, sizes, plan.norm.eps, context)


def lightning_of(
    plan: LightningPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> LightningAttention:
    """Returns the lightning attention of the layer with this number."""
    sizes = plan.heads, plan.head_dim, plan.slope, plan.norm.eps
    return LightningAttention(index, hidden_size, *sizes, plan.inputs, context)


def selective_of(
    plan: MambaPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> MambaMixer:
    """Returns the Mamba layer with this number."""
    sizes = MambaChannels(
        channels=plan.channels,
        state_size=plan.state_size,
        rank=plan.rank,
        kernel=plan.kernel,
        conv_bias=plan.conv_bias,
        bias=plan.bias,
    )
    norm = plan.norm

    def norm_of_size(size: int) -> nn.Module:
        return nn.Identity() if norm is None else head_norm_of(norm, size, context)

    return MambaMixer(index, hidden_size, sizes, norm_of_size, context)


def mamba_of(plan: Mamba2Plan, index: int, hidden_size: int, common: CommonParts, context: LayerContext) -> Mamba2Mixer:
    """Returns the state space layer with this number. Positions are in its state, so nothing is turned."""
    sizes = MambaSizes(
        heads=plan.heads,
        head_dim=plan.head_dim,
        groups=plan.groups,
        state_size=plan.state_size,
        kernel=plan.kernel,
        conv_bias=plan.conv_bias,
        in_bias=plan.in_bias,
        out_bias=plan.out_bias,
        factors=plan.factors,
        least_step=plan.least_step,
    )
    norm: nn.Module = GateAlone()
    if plan.norm is not None:
        section = Section.split(plan.inner, context.tp.rank, context.tp.size)
        norm = gated_norm(section, plan.norm_groups, plan.norm.eps, context, gate_first=plan.gate_first)
    return Mamba2Mixer(index, hidden_size, sizes, norm, context)


def convolution_of(
    plan: ConvolutionPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> GatedConvolution:
    """Returns the short convolution of the layer with this number."""
    return GatedConvolution(index, hidden_size, plan.kernel, context, bias=plan.bias)
