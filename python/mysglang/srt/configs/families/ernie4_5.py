"""ERNIE 4.5, with and without experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    DecoderConfig,
    Epsilon,
    Experts,
    HeadDim,
    Heads,
    Layers,
    Positions,
    Width,
    check_experts,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    MixturePlan,
    MlpPlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)


class Ernie45Config(DecoderConfig, frozen=True, kw_only=True):
    """ERNIE 4.5 (dense): neighbouring lanes of a head are turned together, and one key says whether linears have
    biases.

    Embeddings are tied unless config.json says no.
    """

    carries_code: ClassVar[bool] = True
    rotary_interleaved: ClassVar[bool] = True
    usual_theta: ClassVar[float] = 500000.0

    num_key_value_heads: Heads | None = 2
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    use_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.use_bias, output_bias=self.use_bias)

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.use_bias)


NAMES = (("mlp.moe_statics.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),)


class Ernie45MoeConfig(Ernie45Config, frozen=True, kw_only=True):
    """ERNIE 4.5 with experts, chosen by corrected probabilities, and shared MLPs that every token goes through.

    Every `moe_layer_interval`-th layer has experts, from `moe_layer_start_index` to `moe_layer_end_index` (-1: to
    the last).
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}

    num_key_value_heads: Heads | None = 4
    head_dim: HeadDim | None = None
    moe_intermediate_size: Width = 1536
    moe_k: Experts = 6
    moe_num_experts: Experts = 64
    moe_num_shared_experts: Count | None = 2
    moe_layer_start_index: Count = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: Layers = 1
    moe_norm_min: Epsilon = 1e-12

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def mlp(self, index: int) -> MlpPlan:
        if not self.has_experts(index):
            return super().mlp(index)
        shared = self.moe_num_shared_experts
        return MixturePlan(
            experts=self.moe_num_experts,
            intermediate_size=self.moe_intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(
                kind="softmax",
                top_k=self.moe_k,
                renormalize=True,
                least_sum=self.moe_norm_min,
                float32=True,
                corrected=True,
                corrections_in_row=True,
            ),
            shared=SharedExpertPlan(
                intermediate_size=self.moe_intermediate_size * shared,
                name="shared_experts",
                field="moe_num_shared_experts * moe_intermediate_size",
                gated=False,
                bias=self.use_bias,
            )
            if shared
            else None,
            field="moe_num_experts",
        )

    def has_experts(self, index: int) -> bool:
        end = self.num_hidden_layers - 1 if self.moe_layer_end_index == -1 else self.moe_layer_end_index
        return self.moe_layer_start_index <= index <= end and (index + 1) % self.moe_layer_interval == 0

    def check(self) -> None:
        super().check()
        check_experts(self.moe_k, self.moe_num_experts, "moe_num_experts")
