"""LFM2-MoE: LFM2 with experts after the first layers. A correction is added to scores for choosing experts only."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Count, Experts, Factor, Width, check_experts
from mysglang.srt.configs.families.lfm2 import Lfm2Config
from mysglang.srt.configs.layer_plan import DecoderPlan, MixturePlan, MlpPlan, RopePlan, RouterPlan


class Lfm2MoeConfig(Lfm2Config, frozen=True, kw_only=True):
    """The first `num_dense_layers` layers have an MLP of `intermediate_size`, the others experts."""

    block_auto_adjust_ff_dim: bool = False
    moe_intermediate_size: Width = 1792
    num_dense_layers: Count = 2
    num_experts: Experts = 32
    num_experts_per_tok: Experts = 4
    use_expert_bias: bool = True
    routed_scaling_factor: Factor = 1.0
    norm_topk_prob: bool = True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan = super().plan(rope)
        bias = ("feed_forward.expert_bias", "mlp.gate.e_score_correction_bias")
        return replace(plan, renamed=(bias, *plan.renamed))

    def mlp(self, index: int) -> MlpPlan:
        if index < self.num_dense_layers:
            return super().mlp(index)
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.moe_intermediate_size,
            activation="silu",
            router=RouterPlan(
                kind="sigmoid",
                top_k=self.num_experts_per_tok,
                renormalize=self.norm_topk_prob,
                scale=self.routed_scaling_factor,
                corrected=self.use_expert_bias,
            ),
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_experts, "num_experts")
