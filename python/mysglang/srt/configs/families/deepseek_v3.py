"""DeepSeek-V3, V3.1 and R1, and what shares their body, as Kimi K2 and Moonlight: experts with scores of their own."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Count, Factor, Positions
from mysglang.srt.configs.deepseek_config import DeepseekConfig
from mysglang.srt.configs.layer_plan import DecoderPlan, RopePlan, RouterPlan


class DeepseekV3Config(DeepseekConfig, frozen=True, kw_only=True):
    """Layers that predict further tokens (`num_nextn_predict_layers`) may stand in a checkpoint and are not loaded."""

    topk_methods: ClassVar[tuple[str, ...]] = ("noaux_tc",)
    scoring: ClassVar[str] = "sigmoid"

    max_position_embeddings: Positions = 4096
    n_routed_experts: Count | None = 256
    n_shared_experts: Count | None = 1
    num_experts_per_tok: Count | None = 8
    first_k_dense_replace: Count | None = 3
    n_group: Count | None = 8
    topk_group: Count | None = 4
    norm_topk_prob: bool | None = True
    routed_scaling_factor: Factor = 2.5
    rope_interleave: bool | None = True
    num_nextn_predict_layers: Count | None = 1

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), unused_layers=self.num_nextn_predict_layers or 0)

    @property
    def interleaved(self) -> bool:
        return bool(self.rope_interleave)

    def router(self, top_k: int) -> RouterPlan:
        return RouterPlan(
            kind="sigmoid",
            top_k=top_k,
            renormalize=bool(self.norm_topk_prob),
            groups=1 if self.n_group is None else self.n_group,
            kept_groups=1 if self.topk_group is None else self.topk_group,
            scale=self.routed_scaling_factor,
            float32=True,
            corrected=True,
        )
