"""gpt-oss: attention sinks, a window on every other layer, and experts with biases behind a clamped SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    DecoderConfig,
    Epsilon,
    Experts,
    HeadDim,
    Heads,
    Positions,
    check_experts,
    check_layer_types,
    check_served,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    FusedExpertsPlan,
    MixturePlan,
    RopePlan,
    RouterPlan,
)

SWIGLU_LIMIT = 7.0
"""The clamp that the kernels of `swigluoai` have."""

NAMES = (
    ("mlp.router", "mlp.gate"),
    ("experts.gate_up_proj", "experts.w13_weight"),
    ("experts.gate_up_proj_bias", "experts.w13_bias"),
    ("experts.down_proj", "experts.w2_weight"),
    ("experts.down_proj_bias", "experts.w2_bias"),
)


class GptOssConfig(DecoderConfig, frozen=True, kw_only=True):
    """gpt-oss. Without `layer_types`, the even layers have the window."""

    other_names: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    usual_theta: ClassVar[float] = 150000.0
    usual_rope: ClassVar[Mapping[str, Any]] = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }

    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = 64
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    sliding_window: Positions | None = 128
    layer_types: list[str] | None = None
    num_local_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    swiglu_limit: float | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = index % 2 == 0 if types is None else types[index] == SLIDING
        return replace(
            super().attention(index, rope),
            window=self.sliding_window if slides else None,
            sinks=True,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
        )

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation="swigluoai",
            # The softmax over the chosen logits is that over all of them, divided by its sum over the chosen.
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=True, bias=True),
            bias=True,
            fused=FusedExpertsPlan(transposed=True, interleaved=True),
            field="num_local_experts",
            size_field="intermediate_size",
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
        check_layer_types(self.layer_types, self.num_hidden_layers)
        served = {"hidden_act": (self.hidden_act, "silu"), "swiglu_limit": (self.swiglu_limit, SWIGLU_LIMIT)}
        check_served(served)
