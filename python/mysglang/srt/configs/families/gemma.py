"""Gemma 1 to 3, and VaultGemma."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    SLIDING,
    Cap,
    DecoderConfig,
    Factor,
    HeadDim,
    Heads,
    Layers,
    Positions,
    check_layer_types,
    sliding_rope,
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


class GemmaConfig(DecoderConfig, frozen=True, kw_only=True):
    """Gemma 1: Llama with norms of 1 + w, scaled embeddings and GeGLU.

    Activations overflow in float16, as those of later Gemmas.
    """

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


class Gemma2Config(DecoderConfig, frozen=True, kw_only=True):
    """Gemma 2: four norms with 1 + w, scaled embeddings, soft caps, and a window on every other layer.

    Without `layer_types`, the even layers have the window.
    """

    float16: ClassVar[bool] = False
    may_look_ahead: ClassVar[bool] = False
    """True if models of the family may have attention in both directions."""

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

    @property
    def looks_ahead(self) -> bool:
        """True if tokens also see later tokens."""
        return self.may_look_ahead and self.use_bidirectional_attention is True

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
        if self.use_bidirectional_attention and not self.looks_ahead:
            raise ConfigError("config.json: use_bidirectional_attention is set, and attention is causal here only")


class VaultGemmaConfig(Gemma2Config, frozen=True, kw_only=True):
    """VaultGemma: Gemma 2 without norms after attention and after the MLP.

    All else is Gemma 2's.
    """

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm(), before_mlp="pre_feedforward_layernorm")


class Gemma3Config(Gemma2Config, frozen=True, kw_only=True):
    """Gemma 3 (text): Gemma 2 with norms of heads for its caps, and other rotary positions in layers with the window.

    Without `layer_types`, every `sliding_window_pattern`-th layer sees all keys. Layers with the window have rotary
    parameters of their own: in `rope_parameters`, or as `rope_local_base_freq`.

    With `use_bidirectional_attention`, as in EmbeddingGemma, tokens see both directions, and half of the window lies on
    each side. `attn_logit_softcapping` has no effect, as in transformers.
    """

    may_look_ahead: ClassVar[bool] = True
    rope_of_layers: ClassVar[str | None] = FULL
    positions_are_scaled: ClassVar[bool] = True  # published files have 131072 beside a linear scaling by 8
    usual_theta: ClassVar[float] = 1e6
    usual_vocab_size: ClassVar[int] = 262208
    """`vocab_size` where config.json does not say it."""

    num_attention_heads: Heads = 8
    max_position_embeddings: Positions = 131072
    attn_logit_softcapping: Cap | None = None
    final_logit_softcapping: Cap | None = None
    sliding_window_pattern: Layers = 6
    rope_local_base_freq: float = 10000.0
    rope_parameters: dict[str, Any] | None = None

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        return {"vocab_size": cls.usual_vocab_size} | hf

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        slides = self.slides(index)
        return replace(
            super().attention(index, self.local_rope(rope) if slides else rope),
            window=self.window if slides else None,
            bidirectional=self.looks_ahead,
            logit_cap=0.0,
            qk_norm=self.norm(),
        )

    @property
    def window(self) -> int | None:
        """Keys that a query sees, itself included; with attention in both directions: on each side."""
        if self.looks_ahead and self.sliding_window is not None:
            return self.sliding_window // 2 + 1
        return self.sliding_window

    def slides(self, index: int) -> bool:
        """Returns True if this layer has the window."""
        types = self.layer_types
        return (index + 1) % self.sliding_window_pattern != 0 if types is None else types[index] == SLIDING

    def local_rope(self, rope: RopePlan) -> RopePlan:
        """Returns the rotary plan of layers with the window. It is scaled only if config.json says so."""
        given = self.usual_rope if self.rope_parameters is None else self.rope_parameters
        return sliding_rope(rope, given, self.rope_local_base_freq, self.max_position_embeddings)
