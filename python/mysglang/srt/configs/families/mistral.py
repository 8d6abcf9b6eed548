"""Mistral, Ministral 3 and Mixtral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    Epsilon,
    Experts,
    HeadDim,
    Heads,
    Positions,
    check_experts,
    check_layer_types,
)
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, MixturePlan, RopePlan, RouterPlan, Tempering
from mysglang.srt.configs.rope_config import LENGTH_BEFORE_SCALING
from mysglang.srt.errors import ConfigError


class MistralConfig(LlamaConfig, frozen=True, kw_only=True):
    """Mistral 7B and its successors: Llama with a window on every layer, where config.json sets one.

    A file without `sliding_window` has the window of the first Mistral, one with null has none.
    """

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131072
    sliding_window: Positions | None = 4096

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), window=self.sliding_window)


class MistralOfLayersConfig(MistralConfig, frozen=True, kw_only=True):
    """Mistral, and the Ministral 8B of its name, whose `layer_types` say which layers have the window."""

    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plan = super().attention(index, rope)
        return plan if self.layer_types is None or self.layer_types[index] == SLIDING else replace(plan, window=None)

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)


GROWTH = "llama_4_scaling_beta"


class Ministral3Config(MistralConfig, frozen=True, kw_only=True):
    """Ministral 3, Mistral Small 3.1 and later: Mistral without a window, whose queries may grow with their positions.

    Among `rope_parameters` may stand by how much queries grow with each length before scaling.
    """

    usual_rope: ClassVar[Mapping[str, Any]] = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        LENGTH_BEFORE_SCALING: 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        GROWTH: 0.1,
    }

    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 262144
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), tempering=self.tempering())

    def tempering(self) -> Tempering | None:
        """Returns how queries are scaled by position, for all layers. Raises ConfigError for invalid values."""
        rope = self.rope_scaling or (self.usual_rope if self.rope_parameters is None else self.rope_parameters)
        weight, length = (_positive(rope, key) for key in (GROWTH, LENGTH_BEFORE_SCALING))
        return Tempering(weight, length, 0) if weight and length else None


def _positive(rope: Mapping[str, Any], key: str) -> float | None:
    value = rope.get(key)
    if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1e12):
        raise ConfigError(f"config.json: {key} must be a number of 0 or more, not {value!r}")
    return value


class MixtralConfig(MistralConfig, frozen=True, kw_only=True):
    """Mixtral: Mistral with experts in every layer, whose projections have names of their own.

    The gates of a token's experts are divided by their sum, always.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    usual_theta: ClassVar[float] = 1e6

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=True),
            field="num_local_experts",
            size_field="intermediate_size",
            module="block_sparse_moe",
            parts=("w1", "w3", "w2"),
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
