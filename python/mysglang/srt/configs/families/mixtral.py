"""Mixtral: Mistral with experts in every layer, whose projections have names of their own."""

from __future__ import annotations

from typing import ClassVar

from mysglang.srt.configs.decoder_config import Epsilon, Experts, Heads, Positions, check_experts
from mysglang.srt.configs.families.mistral import MistralConfig
from mysglang.srt.configs.layer_plan import MixturePlan, RouterPlan


class MixtralConfig(MistralConfig, frozen=True, kw_only=True):
    """The gates of a token's experts are divided by their sum, always."""

    usual_theta: ClassVar[float] = 1e6

    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131072
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=True),
            field="num_local_experts",
            size_field="intermediate_size",
            module="block_sparse_moe",
            parts=("w1", "w3", "w2"),
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
