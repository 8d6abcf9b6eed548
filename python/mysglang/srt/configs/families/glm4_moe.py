"""GLM-4.5, 4.6 and 4.7: grouped-query attention with half of each head turned, and the experts of DeepSeek-V3."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Count, DecoderConfig, Epsilon, Factor, HeadDim, Heads, Positions, Width
from mysglang.srt.configs.deepseek_config import check_groups
from mysglang.srt.configs.families.deepseek_v3 import DeepseekV3Config
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan


class Glm4MoeConfig(DeepseekV3Config, frozen=True, kw_only=True):
    """Only the large models have norms of heads (`use_qk_norm`)."""

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
