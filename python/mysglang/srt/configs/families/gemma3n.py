"""Gemma 3n, and what Gemma 4's E models have in common with it: inputs for each layer, and layers that share keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Cap, Count, Heads, LayerNumber, Layers, Positions, Vocabulary, Width
from mysglang.srt.configs.families.gemma import Gemma3Config
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    RopePlan,
    SparseMlpPlan,
)
from mysglang.srt.configs.stream_plan import AltUpPlan, LayerInputPlan, LayerInputsPlan
from mysglang.srt.errors import ConfigError

Sparsity = Annotated[float, msgspec.Meta(ge=0, lt=1)]

INPUT_NAMES = (
    ("embed_tokens_per_layer", "layer_inputs.table"),
    ("per_layer_model_projection", "layer_inputs.projection"),
    ("per_layer_projection_norm", "layer_inputs.norm"),
    ("per_layer_input_gate", "layer_input.gate"),
    ("per_layer_projection", "layer_input.projection"),
    ("post_per_layer_input_norm", "layer_input.norm"),
)
STREAM_NAMES = (("altup_projections", "streams.widen"), ("altup_unembed_projections", "streams.narrow"))


class LayerInputKeys(Gemma3Config, frozen=True, kw_only=True):
    """The keys of config.json about layers' own inputs and shared keys, and what follows from them.

    The last `num_kv_shared_layers` layers attend over the keys of the last layer before them with the same type.
    """

    may_look_ahead: ClassVar[bool] = False

    vocab_size_per_layer_input: Vocabulary = 262144
    hidden_size_per_layer_input: Count | None = 256
    num_kv_shared_layers: Count = 0

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan, size = super().plan(rope), self.hidden_size_per_layer_input
        self.check_shared(plan.attentions)
        if not size:
            return plan
        inputs = LayerInputsPlan(
            layers=self.num_hidden_layers,
            vocab_size=self.vocab_size_per_layer_input,
            size=size,
            eps=self.rms_norm_eps,
        )
        return replace(plan, inputs=inputs, renamed=(*plan.renamed, *INPUT_NAMES))

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        layer, size = super().layer(index, rope), self.hidden_size_per_layer_input
        if not size:
            return layer
        act, eps = self.hidden_activation, self.rms_norm_eps
        return replace(layer, input=LayerInputPlan(number=index, size=size, activation=act, eps=eps))

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), keys_of=self.keys_of(index))

    def keys_of(self, index: int) -> int | None:
        """Returns the number of the layer whose keys this one attends over; None: its own."""
        own = self.num_hidden_layers - self.num_kv_shared_layers
        if index < own:
            return None
        alike = [number for number in range(own) if self.slides(number) == self.slides(index)]
        if not alike:
            raise ConfigError(
                f"config.json: layer {index} attends over keys of a layer before the last {self.num_kv_shared_layers} "
                "(num_kv_shared_layers) of its type, and there is none"
            )
        return alike[-1]

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps)

    @staticmethod
    def check_shared(attentions: Sequence[AttentionPlan]) -> None:
        """Raise ConfigError unless layers with the same keys have heads of keys of the same size and number."""
        for number, plan in enumerate(attentions):
            if plan.keys_of is None:
                continue
            other = attentions[plan.keys_of]
            if (plan.num_kv_heads, plan.head_dim) != (other.num_kv_heads, other.head_dim):
                raise ConfigError(
                    f"config.json: layer {number} has {plan.num_kv_heads} key-value heads of {plan.head_dim} numbers, "
                    f"and layer {plan.keys_of}, whose keys it attends over, {other.num_kv_heads} of {other.head_dim}"
                )


class Gemma3nConfig(LayerInputKeys, frozen=True, kw_only=True):
    """Gemma 3n (text): AltUp, LAuReL, inputs for each layer, sparse MLPs, and shared keys in the last layers."""

    usual_vocab_size: ClassVar[int] = 262400

    intermediate_size: Width | list[Width] = 16384  # type: ignore[assignment]
    num_key_value_heads: Heads | None = 2
    max_position_embeddings: Positions = 32768
    sliding_window: Positions | None = 512
    sliding_window_pattern: Layers = 5
    final_logit_softcapping: Cap | None = 30.0
    hidden_size_per_layer_input: Count | None = 256
    num_kv_shared_layers: Count = 15
    altup_num_inputs: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    altup_active_idx: LayerNumber = 0
    altup_correct_scale: bool = True
    laurel_rank: Width = 64
    activation_sparsity_pattern: list[Sparsity] | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan = super().plan(rope)
        return replace(plan, renamed=(*plan.renamed, *STREAM_NAMES))

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        altup = AltUpPlan(
            streams=self.altup_num_inputs,
            active=self.altup_active_idx,
            scaled=self.altup_correct_scale,
            rank=self.laurel_rank,
        )
        return replace(super().layer(index, rope), altup=altup)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        unit = NormPlan(eps=self.rms_norm_eps, kind="rms_unit")
        return replace(super().attention(index, rope), scale=1.0, value_norm=unit)

    def mlp(self, index: int) -> MlpPlan:
        sizes, sparsity = self.intermediate_size, self.sparsity(index)
        size, act = sizes[index] if isinstance(sizes, list) else sizes, self.hidden_activation
        if not sparsity:
            return GatedMlpPlan(intermediate_size=size, activation=act)
        return SparseMlpPlan(intermediate_size=size, activation=act, sparsity=sparsity)

    def sparsity(self, index: int) -> float:
        """Part of a gate that is cut off. Without a pattern, that of the first ten of more than ten layers is 0.95."""
        pattern = self.activation_sparsity_pattern
        if pattern is None:
            return 0.95 if index < 10 < self.num_hidden_layers else 0.0
        return pattern[index]

    def check(self) -> None:
        super().check()
        lists = {
            "intermediate_size": self.intermediate_size,
            "activation_sparsity_pattern": self.activation_sparsity_pattern,
        }
        for key, value in lists.items():
            if isinstance(value, list) and len(value) != self.num_hidden_layers:
                raise ConfigError(f"config.json: {key} has {len(value)} values for {self.num_hidden_layers} layers")
        if self.altup_active_idx >= self.altup_num_inputs:
            raise ConfigError(
                f"config.json: altup_active_idx is {self.altup_active_idx}, and there are {self.altup_num_inputs} "
                "streams (altup_num_inputs)"
            )
        if not self.hidden_size_per_layer_input:
            raise ConfigError("config.json: hidden_size_per_layer_input must not be 0 for Gemma 3n")
