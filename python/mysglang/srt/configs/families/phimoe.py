"""Phi-3.5-MoE: LayerNorms, biases, and a token's two experts chosen one after the other."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Experts, Positions, check_experts, check_served
from mysglang.srt.configs.families.mixtral import MixtralConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, MixturePlan, NormPlan, RopePlan, RouterPlan


class PhimoeConfig(MixtralConfig, frozen=True, kw_only=True):
    """If positions are scaled, `short_mscale` and `long_mscale` multiply the rotated heads."""

    carries_code: ClassVar[bool] = True

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
