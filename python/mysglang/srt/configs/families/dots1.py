"""dots.llm1: the attention of Qwen3 with a window in later layers, and the experts of DeepSeek-V3."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    SLIDING,
    Count,
    DecoderConfig,
    Epsilon,
    Heads,
    Positions,
    check_layer_types,
)
from mysglang.srt.configs.families.glm import Glm4MoeConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Dots1Config(Glm4MoeConfig, frozen=True, kw_only=True):
    """dots.llm1. Without `layer_types`, layers from `max_window_layers` on have the window."""

    rotary_part: ClassVar[float | None] = None

    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 2048
    rms_norm_eps: Epsilon = 1e-6
    n_routed_experts: Count | None = None
    n_shared_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    first_k_dense_replace: Count | None = 0
    norm_topk_prob: bool | None = False
    sliding_window: Positions | None = 4096
    max_window_layers: Count = 62
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        types = self.layer_types
        slides = index >= self.max_window_layers if types is None else types[index] == SLIDING
        return replace(
            DecoderConfig.attention(self, index, rope),
            qk_norm=self.norm(),
            bias=self.attention_bias,
            output_bias=self.attention_bias,
            window=self.sliding_window if slides else None,
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers)
