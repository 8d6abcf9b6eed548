"""Phi-1, 1.5 and 2: attention and MLP side by side on a LayerNorm, biases everywhere, half of each head turned."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Positions, check_served
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
)

NAMES = (("self_attn.dense", "self_attn.o_proj"), ("final_layernorm", "norm"))


class PhiConfig(DecoderConfig, frozen=True, kw_only=True):
    """`qk_layernorm`, LayerNorms of heads, is refused. The projection to logits has a bias."""

    rotary_part: ClassVar[float | None] = 0.5

    max_position_embeddings: Positions = 2048
    hidden_act: str = "gelu_new"
    layer_norm_eps: Epsilon = 1e-5
    qk_layernorm: bool = False

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), head_bias=True, renamed=NAMES)

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
