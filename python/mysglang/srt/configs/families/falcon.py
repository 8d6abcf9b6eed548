"""Falcon 7B to 180B: attention and MLP side by side on LayerNorms, and MLPs without a gate."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Epsilon, Heads, Layers, Positions, Width
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
)
from mysglang.srt.errors import ConfigError

NAMES = (
    ("transformer.word_embeddings", "embed_tokens"),
    ("transformer.h", "layers"),
    ("transformer.ln_f", "norm"),
    ("self_attention.query_key_value", "self_attn.qkv_proj"),
    ("self_attention.dense", "self_attn.o_proj"),
)


class FalconConfig(DecoderConfig, frozen=True, kw_only=True):
    """The new architecture, that of 40B, has a norm for attention and one for the MLP."""

    carries_code: ClassVar[bool] = True

    intermediate_size: Width = 0
    max_position_embeddings: Positions = 2048
    tie_word_embeddings: bool = True
    num_kv_heads: Heads | None = None
    ffn_hidden_size: Width | None = None
    activation: str = "gelu"
    layer_norm_epsilon: Epsilon = 1e-5
    bias: bool = False
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Layers | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        parallel = self.new_decoder_architecture or self.parallel_attn
        return replace(super().layer(index, rope), parallel=parallel)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            num_kv_heads=self.kv_heads,
            fused_by_head=True,
            bias=self.bias,
            output_bias=self.bias,
        )

    @property
    def kv_heads(self) -> int:
        if self.new_decoder_architecture:
            return self.num_kv_heads or self.num_attention_heads
        return 1 if self.multi_query else self.num_attention_heads

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.ffn_hidden_size or 4 * self.hidden_size,
            activation=self.activation,
            bias=self.bias,
            parts=("dense_h_to_4h", "dense_4h_to_h"),
        )

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_epsilon, kind="layer")

    def norms(self) -> NormsPlan:
        if self.new_decoder_architecture and self.num_ln_in_parallel_attn in (None, 2):
            return NormsPlan(norm=self.norm(), before_attention="ln_attn", before_mlp="ln_mlp")
        parallel = self.new_decoder_architecture or self.parallel_attn
        return replace(super().norms(), before_mlp=None) if parallel else super().norms()

    def check(self) -> None:
        super().check()
        if self.alibi:
            raise ConfigError("config.json: alibi is not supported: positions are rotary here")
        if self.num_attention_heads % self.kv_heads:
            raise ConfigError(
                f"config.json: {self.num_attention_heads} attention heads cannot share {self.kv_heads} key-value heads"
            )
