"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): the attention of Qwen2, routed experts, and one shared expert for every
token.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Experts, Heads, LayerNumber, Width
from mysglang.srt.configs.families.qwen3_moe import Qwen3MoeConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan, SharedExpertPlan


class Qwen2MoeConfig(Qwen3MoeConfig, frozen=True, kw_only=True):
    """With `use_sliding_window`, the layers from `max_window_layers` on have the window; 0 is none."""

    usual_experts: ClassVar[int] = 60

    num_key_value_heads: Heads | None = 16
    qkv_bias: bool = True
    sliding_window: LayerNumber | None = 4096
    max_window_layers: LayerNumber = 28
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Width = 1408
    shared_expert_intermediate_size: Width = 5632

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        slides = self.use_sliding_window and index >= self.max_window_layers
        return replace(
            super().attention(index, rope),
            qk_norm=None,
            bias=self.qkv_bias,
            output_bias=False,
            window=(self.sliding_window or None) if slides else None,
        )

    def shared_expert(self) -> SharedExpertPlan:
        return SharedExpertPlan(intermediate_size=self.shared_expert_intermediate_size)
