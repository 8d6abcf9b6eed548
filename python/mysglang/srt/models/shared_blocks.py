"""Blocks of weights that several layers of a model use, and their uses, built from their plans."""

from __future__ import annotations

from typing import cast

from mysglang.srt.configs.layer_plan import BlockPlan
from mysglang.srt.configs.mixer_plan import SharedBlockPlan
from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.shared_block import BlockSizes, SharedBlock, SharedBlockMixer
from mysglang.srt.models.decoder_layers import norm_of
from mysglang.srt.models.mixers import MIXERS, CommonParts


def block_of(plan: BlockPlan, hidden_size: int, context: LayerContext) -> SharedBlock:
    """Returns a block with its weights, which its uses have in common."""
    attention, mlp = plan.attention, plan.mlp
    sizes = BlockSizes(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        bias=mlp.bias,
        uses=plan.uses,
        rank=plan.rank,
        adapts_attention=plan.adapts_attention,
    )
    norms = norm_of(plan.norm, 2 * hidden_size, context), norm_of(plan.norm, hidden_size, context)
    return SharedBlock(hidden_size, sizes, norms, context)


def use_of(
    plan: SharedBlockPlan, index: int, hidden_size: int, common: CommonParts, context: LayerContext
) -> SharedBlockMixer:
    """Returns the use of a block in the layer with this number."""
    attention, mamba = plan.attention, plan.mamba
    spec = AttentionSpec(
        layer_id=index,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        scale=attention.scale,
    )
    rotary = common.rotary(attention.rope, attention.head_dim)
    assert rotary is None or rotary.order is None, "no such model is known"
    mixer = MIXERS[type(mamba)](mamba, index, hidden_size, common, context.under(mamba.name))
    return SharedBlockMixer(
        hidden_size,
        cast(SharedBlock, common.blocks[plan.block]),
        plan.use,
        spec,
        None if rotary is None else Rotation(rotary.cos_sin),
        mixer,
        norm_of(plan.norm, hidden_size, context),
        context,
    )
