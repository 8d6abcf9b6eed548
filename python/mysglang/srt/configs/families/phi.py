"""Phi-1 to Phi-4, and Phi-3.5-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Experts, Positions, check_experts, check_served
from mysglang.srt.configs.families.mistral import MixtralConfig
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MixturePlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
    RouterPlan,
)

PHI_NAMES = (("self_attn.dense", "self_attn.o_proj"), ("final_layernorm", "norm"))


class PhiConfig(DecoderConfig, frozen=True, kw_only=True):
    """Phi-1, 1.5 and 2: attention and MLP side by side on a LayerNorm, biases everywhere, half of each head turned.

    `qk_layernorm`, LayerNorms of heads, is refused. The projection to logits has a bias.
    """

    carries_code: ClassVar[bool] = True
    rotary_part: ClassVar[float | None] = 0.5

    max_position_embeddings: Positions = 2048
    hidden_act: str = "gelu_new"
    layer_norm_eps: Epsilon = 1e-5
    qk_layernorm: bool = False

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), head_bias=True, renamed=PHI_NAMES)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), parallel=True)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=True, output_bias=True)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=True, parts=("fc1", "fc2")
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_eps, kind="layer")

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp=None)

    def check(self) -> None:
        super().check()
        check_served({"qk_layernorm": (self.qk_layernorm, False)})


class Phi3Config(DecoderConfig, frozen=True, kw_only=True):
    """Phi-3 and Phi-4: Llama whose projections are fused in a checkpoint, with a list of factors for long texts.

    All layers have the window, where there is one. Phi-4-mini turns a part of each head.
    """

    carries_code: ClassVar[bool] = True
    rotary_part: ClassVar[float | None] = 1.0

    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), window=self.sliding_window)


class PhimoeConfig(MixtralConfig, frozen=True, kw_only=True):
    """Phi-3.5-MoE: LayerNorms, biases, and a token's two experts chosen one after the other.

    If positions are scaled, `short_mscale` and `long_mscale` multiply the rotated heads.
    """

    carries_code: ClassVar[bool] = True
    other_names: ClassVar[Mapping[str, str]] = {}

    sliding_window: Positions | None = None
    num_local_experts: Experts = 16
    attention_bias: bool = False
    lm_head_bias: bool = False
    router_jitter_noise: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), head_bias=self.lm_head_bias)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias, output_bias=self.attention_bias)

    def mlp(self, index: int) -> MixturePlan:
        router = RouterPlan(
            kind="sparsemixer", top_k=self.num_experts_per_tok, renormalize=False, jitter=self.router_jitter_noise
        )
        return replace(super().mlp(index), router=router)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps, kind="layer")

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
        check_served({"num_experts_per_tok": (self.num_experts_per_tok, 2)})
