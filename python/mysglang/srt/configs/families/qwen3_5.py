"""Qwen3.5, dense and with experts (text): Qwen3-Next with separate projections for the inputs of its delta nets.

In checkpoints with a tower, positions have three parts (`mrope_section`), which are equal for text.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Experts, Heads, Width
from mysglang.srt.configs.families.qwen3_next import Qwen3NextConfig
from mysglang.srt.configs.layer_plan import DecoderPlan, RopePlan
from mysglang.srt.configs.mixer_plan import LinearAttentionPlan


class Qwen35Config(Qwen3NextConfig, frozen=True, kw_only=True):
    """Every MLP is dense."""

    usual_experts: ClassVar[int] = 0

    num_key_value_heads: Heads | None = 4

    def linear_attention(self) -> LinearAttentionPlan:
        return replace(super().linear_attention(), grouped=False)


class Qwen35MoeConfig(Qwen35Config, frozen=True, kw_only=True):
    """Every layer has experts, and no MLP has an `intermediate_size`."""

    usual_experts: ClassVar[int] = 256

    num_key_value_heads: Heads | None = 2
    intermediate_size: Width = 1
    num_experts_per_tok: Experts = 8

    def plan(self, rope: RopePlan) -> DecoderPlan:
        """Published checkpoints hold all experts of a layer in two tensors; others hold each expert by itself."""
        whole = ("experts.gate_up_proj", "experts.w13_weight"), ("experts.down_proj", "experts.w2_weight")
        return replace(super().plan(rope), aliases=whole)
