"""Qwen3-MoE: the attention of Qwen3, and experts in the place of the MLP of some layers."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    DecoderConfig,
    Experts,
    Heads,
    LayerNumber,
    Layers,
    Positions,
    Width,
    check_experts,
)
from mysglang.srt.configs.layer_plan import AttentionPlan, MixturePlan, MlpPlan, RopePlan, RouterPlan, SharedExpertPlan


class Qwen3MoeConfig(DecoderConfig, frozen=True, kw_only=True):
    """Either all layers have the window or none. transformers 5 writes `num_local_experts` for `num_experts`."""

    usual_experts: ClassVar[int] = 128
    """Experts of a layer where config.json does not say it."""

    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    num_experts: Count | None = None
    num_local_experts: Count | None = None
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Width = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: Layers = 1
    mlp_only_layers: list[LayerNumber] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(
            super().attention(index, rope),
            qk_norm=self.norm(),
            bias=self.attention_bias,
            output_bias=self.attention_bias,
            window=self.sliding_window if self.use_sliding_window else None,
        )

    def mlp(self, index: int) -> MlpPlan:
        """Experts in every `decoder_sparse_step`-th layer, but for those that are named."""
        dense = index in (self.mlp_only_layers or ()) or (index + 1) % self.decoder_sparse_step != 0
        if dense or self.experts == 0:
            return super().mlp(index)
        return MixturePlan(
            experts=self.experts,
            intermediate_size=self.moe_intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=self.norm_topk_prob),
            shared=self.shared_expert(),
        )

    def shared_expert(self) -> SharedExpertPlan | None:
        """The expert that every token goes to; None: there is none."""
        return None

    @property
    def experts(self) -> int:
        """Experts of a layer; 0: every layer is dense."""
        given = self.num_local_experts if self.num_experts is None else self.num_experts
        return self.usual_experts if given is None else given

    def check(self) -> None:
        super().check()
        if self.experts:
            check_experts(self.num_experts_per_tok, self.experts, "num_experts")
