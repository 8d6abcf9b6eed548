"""Starcoder 2: LayerNorms, biases everywhere, and MLPs without a gate."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Heads, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, MlpPlan, NormPlan, PlainMlpPlan, RopePlan


class Starcoder2Config(DecoderConfig, frozen=True, kw_only=True):
    """StarCoder2. If there is a window, all layers have it."""

    num_key_value_heads: Heads | None = 2
    max_position_embeddings: Positions = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    norm_epsilon: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    sliding_window: Positions | None = None
    use_bias: bool = True

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope), bias=self.use_bias, output_bias=self.use_bias, window=self.sliding_window
        )

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            bias=self.use_bias,
            parts=("c_fc", "c_proj"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.norm_epsilon, kind="layer")
