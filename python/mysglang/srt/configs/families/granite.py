"""Granite 3 and 4 (dense): Llama with a factor at the embeddings, at scores, at the residual stream and at logits."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Factor
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, LayerPlan, RopePlan


class GraniteConfig(LlamaConfig, frozen=True, kw_only=True):
    """Scores have `attention_multiplier` in the place of 1 / sqrt(head_dim); logits are divided by `logits_scaling`."""

    embedding_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    residual_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope), embedding_scale=self.embedding_multiplier, logit_scale=1 / self.logits_scaling
        )

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), residual_scale=self.residual_multiplier)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), scale=self.attention_multiplier)
