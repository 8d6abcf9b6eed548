"""Qwen3-MoE: the attention of Qwen3, and experts in the place of the MLP of some layers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import DecoderConfig, Heads, LayerNumber, Layers, Positions, Width
from mysglang.srt.configs.layer_plan import AttentionPlan, MixturePlan, MlpPlan, RopePlan, RouterPlan
from mysglang.srt.errors import ConfigError

Experts = Annotated[int, msgspec.Meta(ge=0, le=1 << 14)]


class Qwen3MoeConfig(DecoderConfig, frozen=True, kw_only=True):
    """Either all layers have the window or none. transformers 5 writes `num_local_experts` for `num_experts`."""

    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Positions | None = 4096
    num_experts: Experts | None = None
    num_local_experts: Experts | None = None
    num_experts_per_tok: Annotated[int, msgspec.Meta(ge=1, le=1 << 14)] = 8
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
        )

    @property
    def experts(self) -> int:
        """Of a layer; 0: every layer is dense."""
        given = self.num_local_experts if self.num_experts is None else self.num_experts
        return 128 if given is None else given

    def check(self) -> None:
        super().check()
        if 0 < self.experts < self.num_experts_per_tok:
            raise ConfigError(
                f"config.json: a token goes to {self.num_experts_per_tok} experts (num_experts_per_tok), and a layer "
                f"has {self.experts} (num_experts)"
            )
