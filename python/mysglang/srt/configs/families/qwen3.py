"""Qwen3 (dense): a norm over each head of queries and keys, and biases only where config.json wants them."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import HeadDim
from mysglang.srt.configs.families.qwen2 import Qwen2Config
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Qwen3Config(Qwen2Config, frozen=True, kw_only=True):
    """`head_dim` is a number of its own, not hidden_size / heads."""

    head_dim: HeadDim | None = 128
    attention_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            qk_norm=self.norm(),
            bias=self.attention_bias,
            output_bias=self.attention_bias,
        )
