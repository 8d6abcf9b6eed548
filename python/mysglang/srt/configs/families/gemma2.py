"""Gemma 2: four norms with 1 + w, scaled embeddings, soft caps, and a window on every other layer."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    Cap,
    DecoderConfig,
    Factor,
    HeadDim,
    Heads,
    Positions,
    check_layer_types,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    MlpPlan,
    NormPlan,
    NormsPlan,
    RopePlan,
)
from mysglang.srt.errors import ConfigError


class Gemma2Config(DecoderConfig, frozen=True, kw_only=True):
    """Without `layer_types`, the even layers have the window."""

    float16: ClassVar[bool] = False

    num_key_value_heads: Heads | None = 4
    head_dim: HeadDim | None = 256
    max_position_embeddings: Positions = 8192
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    query_pre_attn_scalar: Factor = 256
    sliding_window: Positions | None = 4096
    layer_types: list[str] | None = None
    attn_logit_softcapping: Cap | None = 50.0
    final_logit_softcapping: Cap | None = 30.0
    use_bidirectional_attention: bool | str | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            embedding_scale=self.hidden_size**0.5,
            logit_cap=self.final_logit_softcapping or 0.0,
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = index % 2 == 0 if types is None else types[index] == SLIDING
        return replace(
            super().attention(index, rope),
            scale=self.query_pre_attn_scalar**-0.5,
            window=self.sliding_window if slides else None,
            logit_cap=self.attn_logit_softcapping or 0.0,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
        )

    def mlp(self, index: int) -> MlpPlan:
        return GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_activation)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps, kind="rms_plus_one")

    def norms(self) -> NormsPlan:
        return NormsPlan(
            norm=self.norm(),
            after_attention="post_attention_layernorm",
            before_mlp="pre_feedforward_layernorm",
            after_mlp="post_feedforward_layernorm",
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
        if self.use_bidirectional_attention:
            raise ConfigError("config.json: use_bidirectional_attention is set, and attention is causal here only")
