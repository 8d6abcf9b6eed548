"""GLM-4-0414: norms before and after attention and MLP, and half of each head turned, neighbouring lanes together."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, HeadDim, Heads, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, NormsPlan, RopePlan


class Glm4Config(DecoderConfig, frozen=True, kw_only=True):
    """The projections of gate and up are one matrix in a checkpoint."""

    rotary_part: ClassVar[float | None] = 0.5
    rotary_interleaved: ClassVar[bool] = True

    num_key_value_heads: Heads | None = 2
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1.5625e-07
    attention_bias: bool = True

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias)

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm(), after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
