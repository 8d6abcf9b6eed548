"""Checks before the start whether a model can be divided among ranks, and its layers among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeAlias

from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpAndExpertsPlan,
    NoMlpPlan,
    PlainMlpPlan,
    ScaledMlpPlan,
)
from mysglang.srt.configs.mixer_plan import (
    ConvolutionPlan,
    KimiDeltaPlan,
    LightningPlan,
    LinearAttentionPlan,
    Mamba2Plan,
    MambaPlan,
)
from mysglang.srt.configs.mlp_plan import SparseMlpPlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.even_split import even_run

Problems: TypeAlias = Callable[[Any, int], Iterator[str]]
"""A plan and the number of ranks -> why that plan cannot be split over so many."""


def check_split(config: ModelConfig, tp_size: int) -> None:
    """Raises ConfigError with each size that `tp_size` ranks cannot share, and each kind of layer that is not split."""
    if tp_size == 1:
        return
    if config.served_as.foreign:
        raise ConfigError(
            f"--tp-size {tp_size}: {config.architecture} is computed by transformers' code, which is not split over "
            "ranks; leave it out."
        )
    if config.decoder is None:
        raise ConfigError(f"--tp-size {tp_size}: encoders run on one rank in this version; leave it out.")
    if config.decoder.bidirectional:
        raise ConfigError(
            f"--tp-size {tp_size}: models with attention in both directions run on one rank in this version; leave it "
            "out."
        )
    problems = [problem for layer in config.decoder.layers for problem in _layer(layer, tp_size)]
    problems += [problem for block in config.decoder.blocks for problem in _mlp(block.mlp, tp_size)]
    if problems:
        # Most layers have the same.
        raise ConfigError(*(f"--tp-size {tp_size}: {problem}" for problem in dict.fromkeys(problems)))


def _layer(layer: LayerPlan, size: int) -> Iterator[str]:
    if type(layer) is not LayerPlan:
        yield f"layers of the kind {type(layer).__name__} are not split over ranks in this version."
        return
    for part in (*layer.attention.members, layer.mlp):
        problems = SPLIT.get(type(part))
        if problems is None:
            yield f"layers with a {type(part).__name__} are not split over ranks in this version."
        else:
            yield from problems(part, size)


def _attention(plan: AttentionPlan, size: int) -> Iterator[str]:
    if plan.num_heads % size:
        yield f"{plan.num_heads} attention heads (num_attention_heads) cannot be divided among {size} ranks."
    kv_heads = plan.num_kv_heads
    if plan.latent is not None:
        return  # every rank keeps the rows that all heads share
    if kv_heads % size and size % kv_heads:
        yield (
            f"{kv_heads} key-value heads (num_key_value_heads) can neither be divided among {size} ranks nor be held "
            "by equally many ranks each."
        )


def _linear_attention(plan: LinearAttentionPlan, size: int) -> Iterator[str]:
    for heads, field in ((plan.key_heads, "linear_num_key_heads"), (plan.value_heads, "linear_num_value_heads")):
        if heads % size:
            yield f"{heads} heads of linear attention ({field}) cannot be divided among {size} ranks."


def _kimi_delta(plan: KimiDeltaPlan, size: int) -> Iterator[str]:
    if plan.heads % size:
        yield f"{plan.heads} heads of linear attention (linear_num_heads) cannot be divided among {size} ranks."


def _lightning(plan: LightningPlan, size: int) -> Iterator[str]:
    if plan.heads % size:
        yield f"{plan.heads} heads of lightning attention cannot be divided among {size} ranks."


def _selective(plan: MambaPlan, size: int) -> Iterator[str]:
    if plan.channels % size:
        yield f"{plan.channels} channels of mamba cannot be divided among {size} ranks."


def _mamba(plan: Mamba2Plan, size: int) -> Iterator[str]:
    if plan.heads % size or (plan.groups % size and size % plan.groups):
        yield f"{plan.heads} heads of mamba in {plan.groups} groups cannot be divided among {size} ranks."
    if plan.norm is not None and plan.norm_groups % size and size % plan.norm_groups:
        yield f"{plan.norm_groups} norms over what heads of mamba give cannot be divided among {size} ranks."


def _convolution(plan: ConvolutionPlan, size: int) -> Iterator[str]:
    if plan.channels % size:
        yield f"{plan.channels} channels of a convolution (hidden_size) cannot be divided among {size} ranks."


def _nothing(plan: NoMlpPlan, size: int) -> Iterator[str]:
    yield from ()


def _mlp(plan: GatedMlpPlan | PlainMlpPlan | ScaledMlpPlan | SparseMlpPlan, size: int) -> Iterator[str]:
    if plan.intermediate_size % size:
        yield f"an intermediate_size of {plan.intermediate_size} cannot be divided among {size} ranks."


def _mixture(plan: MixturePlan, size: int) -> Iterator[str]:
    if plan.intermediate_size % size:
        yield f"experts with a moe_intermediate_size of {plan.intermediate_size} cannot be divided among {size} ranks."
    if plan.shared is not None and plan.shared.intermediate_size % size:
        yield f"a {plan.shared.field} of {plan.shared.intermediate_size} cannot be divided among {size} ranks."


SPLIT: dict[type, Problems] = {
    AttentionPlan: _attention,
    LinearAttentionPlan: _linear_attention,
    KimiDeltaPlan: _kimi_delta,
    LightningPlan: _lightning,
    MambaPlan: _selective,
    Mamba2Plan: _mamba,
    ConvolutionPlan: _convolution,
    GatedMlpPlan: _mlp,
    PlainMlpPlan: _mlp,
    ScaledMlpPlan: _mlp,
    SparseMlpPlan: _mlp,
    NoMlpPlan: _nothing,
    MixturePlan: _mixture,
    MlpAndExpertsPlan: lambda plan, size: chain(_mlp(plan.mlp, size), _mixture(plan.mixture, size)),
}
"""Kind of plan -> function that reports what prevents a split. Only kinds whose layers are built with `LayerContext.tp`
are listed.
"""


def check_stages(config: ModelConfig, pp_size: int) -> None:
    """Raises ConfigError for a model that cannot be divided into `pp_size` pipeline stages."""
    if pp_size == 1:
        return
    if config.served_as.foreign:
        raise ConfigError(
            f"--pp-size {pp_size}: {config.architecture} is computed by transformers' code, whose layers are not "
            "divided among stages; leave it out."
        )
    if config.decoder is None or config.pooling is not None:
        raise ConfigError(
            f"--pp-size {pp_size}: models that make vectors or scores run in one stage in this version; leave it out."
        )
    if config.num_layers < pp_size:
        raise ConfigError(f"--pp-size {pp_size}: the model has {config.num_layers} layers, fewer than one for a stage.")
    if problems := [*_stage_problems(config.decoder, pp_size)]:
        raise ConfigError(*(f"--pp-size {pp_size}: {problem}" for problem in problems))


def _stage_problems(plan: DecoderPlan, stages: int) -> Iterator[str]:
    """Yields the reasons against this split.

    All stages plan the same pages and states, so each must have a layer of every kind that stores something.
    """
    if plan.altup is not None:
        yield f"its layers pass on {plan.altup.streams} streams of each token (altup_num_inputs), and stages only one."
    if plan.inputs is not None:
        yield "its layers have inputs made of token embeddings (hidden_size_per_layer_input), which one stage has."
    if plan.blocks:
        yield "several of its layers use the same weights and token embeddings, which one stage has (num_mem_blocks)."
    if not all(each.stores for each in plan.attentions):
        yield "its last layers attend over keys of earlier ones (num_kv_shared_layers), which another stage may have."
    for stage in range(stages):
        own = even_run(len(plan.layers), stage, stages)
        where = f"stage {stage} would have layers {own.start} to {own.stop - 1}, and"
        part = plan.stage(stage, stages)
        if plan.attentions and not part.attentions:
            yield f"{where} none of them attends over keys."
        choices = [each.latent.choice for each in part.attentions if each.latent is not None and each.latent.choice]
        if any(choice.layer not in own for choice in choices):
            yield f"{where} some attend to the tokens that a layer of the stage before has chosen (indexer_types)."
        if plan.has_states and not part.has_states:
            yield f"{where} none of them keeps a state for each request, as others do."
