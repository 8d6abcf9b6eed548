"""Seed-OSS: Llama with a head size of its own, and biases that differ between the projections of attention."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import HeadDim, Heads, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class SeedOssConfig(LlamaConfig, frozen=True, kw_only=True):
    """Seed-OSS. `attention_bias` is the bias of queries, keys and values."""

    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 524288
    attention_bias: bool = True
    attention_out_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), output_bias=self.attention_out_bias)
