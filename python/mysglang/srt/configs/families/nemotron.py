"""Nemotron 3 and 4, Minitron: LayerNorms with 1 + w, half of each head turned, and squared ReLU without a gate."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, HeadDim, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, MlpPlan, NormPlan, PlainMlpPlan, RopePlan


class NemotronConfig(DecoderConfig, frozen=True, kw_only=True):
    """The size of heads is the family's, where config.json does not say it."""

    rotary_part: ClassVar[float | None] = 0.5

    head_dim: HeadDim | None = None
    max_position_embeddings: Positions = 4096
    hidden_act: str = "relu2"
    norm_eps: Epsilon = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias, output_bias=self.attention_bias)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.norm_eps, kind="layer_plus_one")
