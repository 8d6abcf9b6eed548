"""InternLM 3: Llama with a key of its own for biases of queries, keys and values."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, GatedMlpPlan, RopePlan


class InternLM3Config(DecoderConfig, frozen=True, kw_only=True):
    """`bias` is that of all other matrices."""

    carries_code: ClassVar[bool] = True

    max_position_embeddings: Positions = 32768
    qkv_bias: bool = False
    bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.qkv_bias, output_bias=self.bias)

    def mlp(self, index: int) -> GatedMlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.bias)
