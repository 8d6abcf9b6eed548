"""ERNIE 4.5 (dense): neighbouring lanes of a head are turned together, and one key says whether linears have biases."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, HeadDim, Heads, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, GatedMlpPlan, MlpPlan, RopePlan


class Ernie45Config(DecoderConfig, frozen=True, kw_only=True):
    """Embeddings are tied unless config.json says no."""

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
