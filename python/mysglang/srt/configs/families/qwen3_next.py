"""Qwen3-Next and Qwen3.5, most of whose layers are gated delta nets."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    Experts,
    HeadDim,
    Heads,
    Layers,
    Width,
    check_layer_types,
    check_served,
)
from mysglang.srt.configs.families.qwen import Qwen3MoeConfig
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    MixerPlan,
    NormPlan,
    RopePlan,
    SharedExpertPlan,
)
from mysglang.srt.configs.mixer_plan import LinearAttentionPlan
from mysglang.srt.errors import ConfigError

LINEAR = "linear_attention"


class Qwen3NextConfig(Qwen3MoeConfig, frozen=True, kw_only=True):
    """Qwen3-Next: gated delta nets, after every third of them gated attention, and mixtures with a shared expert.

    Without `layer_types`, every `full_attention_interval`-th layer attends over keys. No layer has a window.
    """

    rotary_part: ClassVar[float | None] = 0.25
    usual_experts: ClassVar[int] = 512

    num_key_value_heads: Heads | None = 2
    head_dim: HeadDim | None = 256
    moe_intermediate_size: Width = 512
    num_experts_per_tok: Experts = 10
    norm_topk_prob: bool = True
    shared_expert_intermediate_size: Width = 512
    layer_types: list[str] | None = None
    full_attention_interval: Layers = 4
    linear_conv_kernel_dim: Annotated[int, msgspec.Meta(ge=2, le=64)] = 4
    linear_key_head_dim: HeadDim = 128
    linear_value_head_dim: HeadDim = 128
    linear_num_key_heads: Heads = 16
    linear_num_value_heads: Heads = 32

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        return self.attention(index, rope) if self.attends(index) else self.linear_attention()

    def attends(self, index: int) -> bool:
        """True if this layer attends over keys. Every other layer keeps a state."""
        types = self.layer_types
        return (index + 1) % self.full_attention_interval == 0 if types is None else types[index] == FULL

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), output_gate=True, window=None)

    def linear_attention(self) -> LinearAttentionPlan:
        return LinearAttentionPlan(
            key_heads=self.linear_num_key_heads,
            value_heads=self.linear_num_value_heads,
            key_dim=self.linear_key_head_dim,
            value_dim=self.linear_value_head_dim,
            kernel=self.linear_conv_kernel_dim,
            norm=NormPlan(eps=self.rms_norm_eps),
        )

    def shared_expert(self) -> SharedExpertPlan:
        return SharedExpertPlan(intermediate_size=self.shared_expert_intermediate_size)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.rms_norm_eps, kind="rms_plus_one")

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers, (FULL, LINEAR))
        check_served({"hidden_act": (self.hidden_act, "silu")})
        if not any(map(self.attends, range(self.num_hidden_layers))):
            raise ConfigError("config.json: no layer attends over keys, which is not supported")
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise ConfigError(
                f"config.json: {values} value heads (linear_num_value_heads) cannot share {keys} keys "
                "(linear_num_key_heads)"
            )


class Qwen35Config(Qwen3NextConfig, frozen=True, kw_only=True):
    """Qwen3.5, dense and with experts (text): Qwen3-Next with separate projections for the inputs of its delta nets.

    In checkpoints with a tower, positions have three parts (`mrope_section`), which are equal for text.

    Every MLP is dense.
    """

    usual_experts: ClassVar[int] = 0

    num_key_value_heads: Heads | None = 4

    def linear_attention(self) -> LinearAttentionPlan:
        return replace(super().linear_attention(), grouped=False)


class Qwen35MoeConfig(Qwen35Config, frozen=True, kw_only=True):
    """Qwen3.5 with experts in every layer. Its config.json has no `intermediate_size`, because no layer has a dense
    MLP. Gates are divided by their sum, always.
    """

    usual_experts: ClassVar[int] = 256

    num_key_value_heads: Heads | None = 2
    intermediate_size: Width = 1
    num_experts_per_tok: Experts = 8

    @property
    def renormalizes(self) -> bool:
        return True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        """Adds the names of published checkpoints, which hold all experts of a layer in two tensors. Other checkpoints
        hold each expert by itself.
        """
        whole = ("experts.gate_up_proj", "experts.w13_weight"), ("experts.down_proj", "experts.w2_weight")
        return replace(super().plan(rope), aliases=whole)
