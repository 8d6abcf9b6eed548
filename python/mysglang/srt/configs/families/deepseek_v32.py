"""DeepSeek-V3.2 and GLM-5: latent attention over the tokens that an indexer chooses (DSA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    Epsilon,
    Factor,
    HeadDim,
    Heads,
    Positions,
    Width,
    check_layer_types,
    check_served,
)
from mysglang.srt.configs.families.deepseek import DeepseekV3Config
from mysglang.srt.configs.families.glm import Glm4MoeLiteConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, ChoicePlan, IndexerPlan, NormPlan, RopePlan
from mysglang.srt.errors import ConfigError

INDEX_NORM = NormPlan(eps=1e-6, kind="layer")
"""Norm of index keys. Its epsilon is fixed, whatever `rms_norm_eps` is."""
LAYER_TYPE = "deepseek_sparse_attention"


class DeepseekV32Config(Glm4MoeLiteConfig, frozen=True, kw_only=True):
    """DeepSeek-V3.2 and V3.2-Exp: DeepSeek-V3 with an indexer in each layer, which turns halves of what it turns."""

    other_names: ClassVar[Mapping[str, str]] = DeepseekV3Config.other_names
    index_interleaved: ClassVar[bool] = False
    """True if the indexer rotates neighbouring lanes together."""

    max_position_embeddings: Positions = 163840
    rms_norm_eps: Epsilon = 1e-6
    q_lora_rank: Width | None = 1536
    qk_nope_head_dim: HeadDim = 128
    v_head_dim: HeadDim = 128
    n_routed_experts: Count | None = 256
    num_experts_per_tok: Count | None = 8
    moe_intermediate_size: Width = 2048
    first_k_dense_replace: Count | None = 3
    n_group: Count | None = 8
    topk_group: Count | None = 4
    routed_scaling_factor: Factor = 2.5
    index_topk: Positions = 2048
    index_head_dim: HeadDim = 128
    index_n_heads: Heads = 64
    indexer_rope_interleave: bool | None = None
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plan = super().attention(index, rope)
        assert plan.latent is not None, "all layers of DeepSeek have latent rows"
        return replace(plan, latent=replace(plan.latent, choice=self.choice(index)))

    def choice(self, index: int) -> ChoicePlan:
        """Returns which tokens the queries of a layer attend to."""
        indexer = IndexerPlan(
            heads=self.index_n_heads,
            head_dim=self.index_head_dim,
            interleaved=self.index_interleaved,
            norm=INDEX_NORM,
        )
        return ChoicePlan(top_k=self.index_topk, layer=index, indexer=indexer)

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers, (LAYER_TYPE,))
        check_served(
            {
                "rope_interleave": (self.rope_interleave, True),
                "indexer_rope_interleave": (self.indexer_rope_interleave, self.index_interleaved),
            }
        )
        if self.q_lora_rank is None:
            raise ConfigError("config.json: q_lora_rank is null, and an indexer makes its queries from such vectors")
        if self.index_head_dim < self.qk_rope_head_dim:
            raise ConfigError(
                f"config.json: index_head_dim {self.index_head_dim} must be at least qk_rope_head_dim "
                f"{self.qk_rope_head_dim}, the part of index keys that is turned"
            )


class GlmMoeDsaConfig(DeepseekV32Config, frozen=True, kw_only=True):
    """GLM-5: as DeepSeek-V3.2, but some layers take the choice of a layer before them, and have no indexer.

    `indexer_types` says which; without it `index_topk_pattern` (F and S for each layer), or `index_topk_freq` and
    `index_skip_topk_offset` (from the layer before the offset on, every so many have an indexer).
    """

    index_interleaved: ClassVar[bool] = True

    max_position_embeddings: Positions = 202752
    rms_norm_eps: Epsilon = 1e-5
    q_lora_rank: Width | None = 2048
    qk_nope_head_dim: HeadDim = 192
    v_head_dim: HeadDim = 256
    n_group: Count | None = 1
    topk_group: Count | None = 1
    index_n_heads: Heads = 32
    indexer_types: list[str] | None = None
    index_topk_pattern: str | list[str] | None = None
    index_topk_freq: Count = 1
    index_skip_topk_offset: Count = 2

    def choice(self, index: int) -> ChoicePlan:
        plan, types = super().choice(index), self.types
        chooser = max(layer for layer in range(index + 1) if types[layer] == "full")
        return plan if chooser == index else replace(plan, layer=chooser, indexer=None)

    @property
    def types(self) -> list[str]:
        """For each layer, "full" if it has an indexer, "shared" if it takes the choice of the last one that has."""
        if self.indexer_types is not None:
            return self.indexer_types
        if (pattern := self.index_topk_pattern) is not None:
            return [{"F": "full", "S": "shared"}.get(mark, mark) for mark in pattern]
        every, offset = max(self.index_topk_freq, 1), self.index_skip_topk_offset
        behind = (max(index - offset + 1, 0) for index in range(self.num_hidden_layers))
        return ["shared" if number % every else "full" for number in behind]

    def check(self) -> None:
        super().check()
        types = self.types
        if len(types) != self.num_hidden_layers or not set(types) <= {"full", "shared"} or types[0] != "full":
            raise ConfigError(
                f"config.json: indexer_types (or index_topk_pattern) must say full or shared for each of "
                f"{self.num_hidden_layers} layers, and full for the first"
            )
