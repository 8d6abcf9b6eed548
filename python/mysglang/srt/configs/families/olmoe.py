"""OLMoE: the attention of OLMo 2, norms where Llama has them, and experts in every layer."""

from __future__ import annotations

from mysglang.srt.configs.decoder_config import Experts, Positions, check_experts
from mysglang.srt.configs.families.olmo2 import Olmo2Config
from mysglang.srt.configs.layer_plan import MixturePlan, NormsPlan, RouterPlan
from mysglang.srt.errors import ConfigError


class OlmoeConfig(Olmo2Config, frozen=True, kw_only=True):
    """`clip_qkv` is refused: no published checkpoint sets it."""

    max_position_embeddings: Positions = 4096
    clip_qkv: float | None = None
    num_experts: Experts = 64
    num_experts_per_tok: Experts = 8
    norm_topk_prob: bool = False

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=self.norm_topk_prob),
            size_field="intermediate_size",
        )

    def norms(self) -> NormsPlan:
        return NormsPlan(norm=self.norm())

    def check(self) -> None:
        super().check()
        if self.clip_qkv is not None:
            raise ConfigError("config.json: clip_qkv is not supported")
        check_experts(self.num_experts_per_tok, self.num_experts, "num_experts")
