"""Gemma 1: Llama with norms of 1 + w, scaled embeddings and GeGLU."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, HeadDim, Heads, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, NormPlan, RopePlan
from mysglang.srt.errors import ConfigError


class GemmaConfig(DecoderConfig, frozen=True, kw_only=True):
    """Activations overflow in float16, as those of later Gemmas."""

    float16: ClassVar[bool] = False

    num_key_value_heads: Heads | None = 16
    head_dim: HeadDim | None = 256
    max_position_embeddings: Positions = 8192
    hidden_act: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    use_bidirectional_attention: bool | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), embedding_scale=self.hidden_size**0.5)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias, output_bias=self.attention_bias)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps, kind="rms_plus_one")

    def check(self) -> None:
        super().check()
        if self.use_bidirectional_attention:
            raise ConfigError("config.json: use_bidirectional_attention is set, and attention is causal here only")
