"""DeepSeek-V2, V2-Lite and V2.5: probabilities of experts, of all or of a few groups."""

from __future__ import annotations

from typing import ClassVar

from mysglang.srt.configs.decoder_config import Count, Positions, Width
from mysglang.srt.configs.deepseek_config import DeepseekConfig
from mysglang.srt.configs.layer_plan import RouterPlan
from mysglang.srt.errors import ConfigError

IN_GROUPS = "group_limited_greedy"


class DeepseekV2Config(DeepseekConfig, frozen=True, kw_only=True):
    """`norm_topk_prob` is refused: the models' own code and transformers take it differently, and none sets it."""

    topk_methods: ClassVar[tuple[str, ...]] = ("greedy", IN_GROUPS)
    scoring: ClassVar[str] = "softmax"

    max_position_embeddings: Positions = 2048
    n_routed_experts: Count | None = 64
    n_shared_experts: Count | None = 2
    moe_intermediate_size: Width = 1407
    norm_topk_prob: bool | None = None

    def router(self, top_k: int) -> RouterPlan:
        grouped = self.method == IN_GROUPS
        return RouterPlan(
            kind="softmax",
            top_k=top_k,
            renormalize=False,
            groups=(self.n_group or 0) if grouped else 1,
            kept_groups=(self.topk_group or 0) if grouped else 1,
            scale=self.routed_scaling_factor,
            float32=True,
        )

    def check(self) -> None:
        super().check()
        if self.norm_topk_prob:
            raise ConfigError(
                "config.json: norm_topk_prob is not supported for DeepSeek-V2, whose own code then leaves out "
                "routed_scaling_factor, while transformers ignores it; no published checkpoint sets it"
            )
