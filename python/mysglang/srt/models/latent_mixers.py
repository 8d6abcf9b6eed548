"""Latent attention, built from its plan: over all latent rows, or over those that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mysglang.srt.configs.layer_plan import AttentionPlan, ChoicePlan, LatentPlan
from mysglang.srt.forward.forward_batch import AttentionSpec, ChosenKeys
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.indexer import ChosenElsewhere, Indexer, IndexerSizes
from mysglang.srt.layers.latent_attention import ChosenLatentAttention, LatentAttention, LatentSizes
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding
from mysglang.srt.models.decoder_layers import head_norm_of


def latent_attention_of(
    plan: AttentionPlan,
    latent: LatentPlan,
    spec: AttentionSpec,
    hidden_size: int,
    rotary: RotaryEmbedding | None,
    context: LayerContext,
) -> LatentAttention:
    """Returns attention over latent rows: over all of them, or over those that are chosen."""
    sizes = LatentSizes(
        query_rank=latent.query_rank,
        key_dim=latent.key_dim,
        value_dim=latent.value_dim,
        interleaved=latent.interleaved,
    )
    norm = partial(head_norm_of, latent.norm, context=context)
    if (choice := latent.choice) is None:
        return LatentAttention(
            hidden_size,
            spec,
            sizes,
            rotary,
            norm=norm,
            bias=plan.bias,
            output_bias=plan.output_bias,
            context=context,
        )
    assert rotary is not None, "an indexer's keys are turned as those of the layer"
    keys = ChosenKeys(top_k=choice.top_k, layer=choice.layer, index_dim=latent.index_dim)
    return ChosenLatentAttention(
        hidden_size,
        replace(spec, chosen=keys),
        sizes,
        rotary,
        norm=norm,
        bias=plan.bias,
        output_bias=plan.output_bias,
        indexer=indexer_of(choice, latent, hidden_size, rotary, context.under("indexer")),
        context=context,
    )


def indexer_of(
    choice: ChoicePlan, latent: LatentPlan, hidden_size: int, rotary: RotaryEmbedding, context: LayerContext
) -> Indexer | ChosenElsewhere:
    """Returns the part of a layer that chooses the tokens its queries attend to."""
    if (plan := choice.indexer) is None:
        return ChosenElsewhere()
    assert latent.query_rank is not None, "its queries are made from the same vectors as the layer's"
    sizes = IndexerSizes(
        heads=plan.heads,
        head_dim=plan.head_dim,
        rope_dim=latent.rope_dim,
        interleaved=plan.interleaved,
        eps=plan.norm.eps,
    )
    return Indexer(hidden_size, latent.query_rank, sizes, rotary, context)
