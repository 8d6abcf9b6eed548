"""InternLM 2 and 3."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Positions
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, GatedMlpPlan, RopePlan

NAMES = (
    ("tok_embeddings", "embed_tokens"),
    ("output", "lm_head"),
    ("attention.wqkv", "self_attn.qkv_proj"),
    ("attention.wo", "self_attn.o_proj"),
    ("feed_forward.w1", "mlp.gate_proj"),
    ("feed_forward.w3", "mlp.up_proj"),
    ("feed_forward.w2", "mlp.down_proj"),
    ("attention_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
)


class InternLM2Config(DecoderConfig, frozen=True, kw_only=True):
    """InternLM 2 and 2.5: Llama under other names. Queries, keys and values are one matrix.

    `bias` is that of attention.
    """

    carries_code: ClassVar[bool] = True

    max_position_embeddings: Positions = 2048
    bias: bool = True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), fused_by_head=True, bias=self.bias, output_bias=self.bias)


class InternLM3Config(DecoderConfig, frozen=True, kw_only=True):
    """InternLM 3: Llama with a key of its own for biases of queries, keys and values.

    `bias` is that of all other matrices.
    """

    carries_code: ClassVar[bool] = True

    max_position_embeddings: Positions = 32768
    qkv_bias: bool = False
    bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.qkv_bias, output_bias=self.bias)

    def mlp(self, index: int) -> GatedMlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.bias)
