"""Llama 1 to 3.x."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, GatedMlpPlan, MlpPlan, RopePlan


class LlamaConfig(DecoderConfig, frozen=True, kw_only=True):
    """The plain decoder; every linear may have a bias."""

    max_position_embeddings: Positions = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plain = super().attention(index, rope)
        return replace(plain, bias=self.attention_bias, output_bias=self.attention_bias)

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)
