"""Costs of a model's steps, worked out from its plan: operations and bytes for metrics, and gains of shared prefixes.

Knows no option: whether these costs are used is the builder's decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from mysglang.srt.configs.checkpoint_sizes import DTYPE_BYTES
from mysglang.srt.configs.layer_plan import AttentionPlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts
from mysglang.srt.scheduling.step_costs import AttentionShape, DecoderCosts, DecoderShape, StepCosts


def decoder_costs(model: ModelConfig, ranks: RankContext) -> StepCosts:
    """Returns the costs of this rank's part of a decoder that our own code runs."""
    # Costs of the layers of this stage; the first rank's stage has the head.
    plan = model.plan.stage(ranks.pp.rank, ranks.pp.size)
    shape = DecoderShape(
        layer_parameters=plan.used_parameters(model.hidden_size),
        head_parameters=model.hidden_size * model.vocab_size,
        layers=tuple(shape for each in plan.attentions for shape in _attention_shapes(each, ranks.tp.size)),
        dtype_bytes=DTYPE_BYTES.get(model.dtype, 2),
    )
    return DecoderCosts(shape.part(ranks.tp.size))


def cascade_costs(model: ModelConfig) -> CascadeCosts | None:
    """Returns what reading a shared prefix once costs and saves, or None for a model in which it cannot be shared."""
    # Whole prompts share no pages, and those of a model whose tokens see both directions have none.
    if model.decoder is None or model.needs_whole_prompts or not model.decoder.attentions:
        return None
    attention = model.decoder.attentions[0]
    return CascadeCosts.of_model(
        partial_size=attention.num_heads * attention.value_dim,
        token_bytes=attention.kept_size * DTYPE_BYTES.get(model.dtype, 2),
    )


def prompt_cascade_costs(model: ModelConfig) -> CascadeCosts | None:
    """Returns what it costs to let prompts read a shared prefix together, or None for a model that does not: only
    layers with latent rows make something of the prefix in each step. How much that saves, the attention backend knows.
    """
    costs = cascade_costs(model)
    if costs is None or model.decoder is None or model.decoder.attentions[0].latent is None:
        return None
    return CascadeCosts(per_row=0.0)


def _attention_shapes(plan: AttentionPlan, tp_size: int) -> Iterator[AttentionShape]:
    """Yields a layer's attention, and before it the scores of its indexer, which are those of keys without values."""
    latent = plan.latent
    choice = None if latent is None else latent.choice
    if choice is not None and choice.indexer is not None:
        # Each rank computes all heads of an indexer, so that the share of a rank must be all of them.
        yield AttentionShape(choice.indexer.heads * tp_size, 1, choice.indexer.head_dim, latent_dim=0)
    yield AttentionShape(
        plan.num_heads,
        plan.num_kv_heads,
        plan.head_dim,
        plan.window if choice is None else choice.top_k,
        None if latent is None else latent.rank,
        plan.stores,
    )
