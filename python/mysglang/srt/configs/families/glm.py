"""GLM-4, with and without experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Count, DecoderConfig, Epsilon, Factor, HeadDim, Heads, Positions, Width
from mysglang.srt.configs.families.deepseek import DeepseekV3Config, check_groups
from mysglang.srt.configs.layer_plan import AttentionPlan, NormsPlan, RopePlan
from mysglang.srt.errors import ConfigError


class Glm4Config(DecoderConfig, frozen=True, kw_only=True):
    """GLM-4-0414: norms before and after attention and MLP, and half of each head turned, neighbouring lanes together.

    The projections of gate and up are one matrix in a checkpoint.
    """

    rotary_part: ClassVar[float | None] = 0.5
    rotary_interleaved: ClassVar[bool] = True

    num_key_value_heads: Heads | None = 2
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1.5625e-07
    attention_bias: bool = True

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias)

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm(), after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


class GlmConfig(Glm4Config, frozen=True, kw_only=True):
    """GLM-4 9B (the `-hf` checkpoints) and GLM-Edge: GLM-4-0414 with norms before attention and MLP only.

    GLM has Llama's keys with its own default values.
    """

    def norms(self) -> NormsPlan:
        return DecoderConfig.norms(self)


class Glm4MoeConfig(DeepseekV3Config, frozen=True, kw_only=True):
    """GLM-4.5, 4.6 and 4.7: grouped-query attention with half of each head turned, and the experts of DeepSeek-V3.

    Only the large models have norms of heads (`use_qk_norm`).
    """

    rotary_part: ClassVar[float | None] = 0.5

    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = None
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    use_qk_norm: bool = False
    n_routed_experts: Count | None = 128
    moe_intermediate_size: Width = 1408
    first_k_dense_replace: Count | None = 1
    n_group: Count | None = 1
    topk_group: Count | None = 1
    routed_scaling_factor: Factor = 1.0

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            DecoderConfig.attention(self, index, rope),
            qk_norm=self.norm() if self.use_qk_norm else None,
            bias=self.attention_bias,
        )

    def check(self) -> None:
        DecoderConfig.check(self)
        if self.n_routed_experts:
            check_groups(self.n_routed_experts, self.router(self.num_experts_per_tok or 0))


MLP_TYPES = ("dense", "sparse")


class Glm4MoeLiteConfig(DeepseekV3Config, frozen=True, kw_only=True):
    """GLM-4.7-Flash: the layers of DeepSeek-V3, of sizes of its own.

    `mlp_layer_types` says which layers have experts; without it, all but the first `first_k_dense_replace`.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "head_dim": "qk_rope_head_dim",
    }

    max_position_embeddings: Positions = 202752
    rms_norm_eps: Epsilon = 1e-5
    q_lora_rank: Width | None = 768
    qk_nope_head_dim: HeadDim = 192
    v_head_dim: HeadDim = 256
    n_routed_experts: Count | None = 64
    num_experts_per_tok: Count | None = 4
    moe_intermediate_size: Width = 1536
    first_k_dense_replace: Count | None = 1
    n_group: Count | None = 1
    topk_group: Count | None = 1
    routed_scaling_factor: Factor = 1.8
    mlp_layer_types: list[str] | None = None

    def has_experts(self, index: int) -> bool:
        types = self.mlp_layer_types
        return super().has_experts(index) if types is None else types[index] == "sparse"

    def check(self) -> None:
        super().check()
        types = self.mlp_layer_types
        if types is not None and (len(types) != self.num_hidden_layers or not set(types) <= set(MLP_TYPES)):
            raise ConfigError(
                f"config.json: mlp_layer_types must name one of {', '.join(MLP_TYPES)} for each of "
                f"{self.num_hidden_layers} layers"
            )
