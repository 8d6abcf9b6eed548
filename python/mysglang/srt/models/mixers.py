"""The table of mixers that a layer's plan may name, and how attention is built from its plan.

Mixers that few models have are named by their places (`latent_mixers.py`, `state_mixers.py`): a server of other models
does not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from mysglang.srt.configs.layer_plan import AttentionPlan, MixerPlan, RopePlan
from mysglang.srt.configs.mixer_plan import (
    ConvolutionPlan,
    KimiDeltaPlan,
    LightningPlan,
    LinearAttentionPlan,
    Mamba2Plan,
    MambaPlan,
    NoMixerPlan,
    SharedBlockPlan,
    SumPlan,
)
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import PagedAttention, SumOfMixers, Tempering
from mysglang.srt.layers.layernorm import SplitRMSNorm
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.layers.shared_keys import SharedKeysAttention
from mysglang.srt.models.decoder_layers import head_norm_of
from mysglang.srt.utils.late_import import at_first_call


class CommonParts:
    """The parts that several layers of one model use: rotary tables, of which layers with equal plans have the same,
    and blocks of weights.
    """

    def __init__(self, num_positions: int, blocks: nn.ModuleList) -> None:
        self._num_positions = num_positions
        self._made: list[tuple[RopePlan, int, RotaryEmbedding]] = []
        self.blocks = blocks
        """One module for each of `DecoderPlan.blocks`."""

    def rotary(self, plan: RopePlan | None, head_dim: int) -> RotaryEmbedding | None:
        """Returns the rotary table of a plan; None for layers without rotary positions."""
        if plan is None:
            return None
        for known, dim, table in self._made:
            if (known, dim) == (plan, head_dim):
                return table
        table = RotaryEmbedding(
            plan.parameters,
            head_dim,
            self._num_positions,
            turned=plan.lanes(head_dim),
            interleaved=plan.interleaved,
        )
        self._made.append((plan, head_dim, table))
        return table


def attention_of(
    plan: AttentionPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> nn.Module:
    """Returns the attention of the layer with this number."""
    norm, whole, latent, values = plan.qk_norm, plan.qk_norm_whole, plan.latent, plan.value_norm
    spec = AttentionSpec(
        layer_id=index if plan.keys_of is None else plan.keys_of,
        num_heads=plan.num_heads,
        num_kv_heads=plan.num_kv_heads,
        head_dim=plan.head_dim,
        scale=plan.scale,
        window=plan.window,
        chunked=plan.chunked,
        bidirectional=plan.bidirectional,
        logit_cap=plan.logit_cap,
        latent_dim=None if latent is None else latent.rank,
    )
    if latent is not None:
        assert norm is None, "latent rows are normed in another way"
        return _latent_attention(plan, latent, spec, hidden_size, common.rotary(plan.rope, latent.rope_dim), context)
    if not plan.stores:
        assert not whole and not plan.qk_norm_turned, "heads are normed each, before they are turned"
        assert not plan.output_gate and plan.tempering is None and not plan.sinks, "no such layer shares keys"
        return SharedKeysAttention(
            hidden_size,
            spec,
            common.rotary(plan.rope, plan.head_dim),
            head_norm=None if norm is None else lambda: head_norm_of(norm, plan.head_dim, context),
            bias=plan.bias,
            output_bias=plan.output_bias,
            context=context,
        )
    return PagedAttention(
        hidden_size,
        spec,
        common.rotary(plan.rope, plan.head_dim),
        head_norms=None if norm is None or whole else lambda: head_norm_of(norm, plan.head_dim, context),
        whole_norms=None if norm is None or not whole else lambda section: SplitRMSNorm(section, norm.eps, context),
        norms_turned=plan.qk_norm_turned,
        value_norm=None if values is None else lambda: head_norm_of(values, plan.head_dim, context),
        values_from_keys=plan.values_from_keys,
        tempering=None if plan.tempering is None else Tempering(*plan.tempering),
        sinks=plan.sinks,
        fused_by_head=plan.fused_by_head,
        bias=plan.bias,
        output_bias=plan.output_bias,
        output_gate=plan.output_gate,
        context=context,
    )


def sum_of(plan: SumPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext) -> SumOfMixers:
    """Returns the layer with this number, which adds up the results of several mixers."""
    mixers = {
        mixer.name: MIXERS[type(mixer)](mixer, index, hidden_size, common, context.under(mixer.name))
        for mixer in plan.members
    }
    return SumOfMixers(mixers, [(part.input_scale, part.output_scale) for part in plan.parts])


def no_mixer(plan: NoMixerPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext) -> nn.Module:
    """Makes an identity in place of the mixer that a layer does not have."""
    return nn.Identity()


_latent_attention: Callable[..., nn.Module] = at_first_call("mysglang.srt.models.latent_mixers:latent_attention_of")

STATES = "mysglang.srt.models.state_mixers"

MIXERS: Mapping[type[MixerPlan], Callable[[Any, int, int, CommonParts, LayerContext], nn.Module]] = {
    AttentionPlan: attention_of,
    LinearAttentionPlan: at_first_call(f"{STATES}:linear_attention_of"),
    KimiDeltaPlan: at_first_call(f"{STATES}:kimi_delta_of"),
    LightningPlan: at_first_call(f"{STATES}:lightning_of"),
    MambaPlan: at_first_call(f"{STATES}:selective_of"),
    Mamba2Plan: at_first_call(f"{STATES}:mamba_of"),
    ConvolutionPlan: at_first_call(f"{STATES}:convolution_of"),
    SharedBlockPlan: at_first_call("mysglang.srt.models.shared_blocks:use_of"),
    SumPlan: sum_of,
    NoMixerPlan: no_mixer,
}
"""(plan, number of the layer, hidden_size, common, context) -> the module: x [T, hidden_size], the step -> [W,
hidden_size] of the wanted tokens.
"""
