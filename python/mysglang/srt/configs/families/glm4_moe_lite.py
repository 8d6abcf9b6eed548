"""GLM-4.7-Flash: the layers of DeepSeek-V3, of sizes of its own."""

from __future__ import annotations

from mysglang.srt.configs.decoder_config import Count, Epsilon, Factor, HeadDim, Positions, Width
from mysglang.srt.configs.families.deepseek_v3 import DeepseekV3Config
from mysglang.srt.errors import ConfigError

LAYER_TYPES = ("dense", "sparse")


class Glm4MoeLiteConfig(DeepseekV3Config, frozen=True, kw_only=True):
    """`mlp_layer_types` says which layers have experts; without it, all but the first `first_k_dense_replace`."""

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
        if types is not None and (len(types) != self.num_hidden_layers or not set(types) <= set(LAYER_TYPES)):
            raise ConfigError(
                f"config.json: mlp_layer_types must name one of {', '.join(LAYER_TYPES)} for each of "
                f"{self.num_hidden_layers} layers"
            )
