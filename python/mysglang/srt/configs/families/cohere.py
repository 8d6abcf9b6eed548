"""Command R and R+, and Command R7B."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    DecoderConfig,
    Epsilon,
    Factor,
    HeadDim,
    Heads,
    Layers,
    Positions,
    check_layer_types,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, LayerPlan, NormPlan, NormsPlan, RopePlan
from mysglang.srt.errors import ConfigError


class CohereConfig(DecoderConfig, frozen=True, kw_only=True):
    """Command R: attention and MLP side by side on a LayerNorm without bias, and logits with a factor.

    `use_qk_norm` (Command R+), a norm with other weights for each head, is refused.
    """

    rotary_interleaved: ClassVar[bool] = True
    usual_theta: ClassVar[float] = 500000.0

    num_key_value_heads: Heads | None = None
    max_position_embeddings: Positions = 8192
    layer_norm_eps: Epsilon = 1e-5
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    logit_scale: Factor = 0.0625
    use_qk_norm: bool = False

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), logit_scale=self.logit_scale)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), parallel=True)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias, output_bias=self.attention_bias)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.layer_norm_eps, kind="layer_without_bias")

    def norms(self) -> NormsPlan:
        return replace(super().norms(), before_mlp=None)

    def check(self) -> None:
        super().check()
        if self.use_qk_norm:
            raise ConfigError("config.json: use_qk_norm is not supported")


class Cohere2Config(CohereConfig, frozen=True, kw_only=True):
    """Command R7B and A: Command R with a window in three of four layers, and no positions in the others.

    Without `layer_types`, every `sliding_window_pattern`-th layer sees all keys.
    """

    usual_theta: ClassVar[float] = 10000.0

    head_dim: HeadDim | None = None
    sliding_window: Positions | None = 4096
    sliding_window_pattern: Layers = 4
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = (index + 1) % self.sliding_window_pattern != 0 if types is None else types[index] == SLIDING
        windowed = slides and self.sliding_window is not None
        return replace(
            super().attention(index, rope),
            window=self.sliding_window if slides else None,
            rope=rope if windowed else None,
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
