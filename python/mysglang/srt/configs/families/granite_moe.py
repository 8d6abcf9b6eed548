"""Granite 3 with experts, and with an MLP beside them that every token goes through."""

from __future__ import annotations

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Count, Experts, check_experts
from mysglang.srt.configs.families.granite import GraniteConfig
from mysglang.srt.configs.layer_plan import (
    DecoderPlan,
    FusedExpertsPlan,
    MixturePlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)

NAMES = (
    ("block_sparse_moe.router.layer", "mlp.gate"),
    ("block_sparse_moe.input_linear.weight", "mlp.experts.w13_weight"),
    ("block_sparse_moe.output_linear.weight", "mlp.experts.w2_weight"),
    ("shared_mlp.input_linear", "mlp.shared_mlp.gate_up_proj"),
    ("shared_mlp.output_linear", "mlp.shared_mlp.down_proj"),
)


class GraniteMoeConfig(GraniteConfig, frozen=True, kw_only=True):
    """`intermediate_size` is that of each expert. Without `shared_intermediate_size` there is no such MLP."""

    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    shared_intermediate_size: Count = 0

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def mlp(self, index: int) -> MixturePlan:
        size = self.shared_intermediate_size
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            # The softmax over the chosen logits is that over all of them, divided by its sum over the chosen.
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=True),
            shared=SharedExpertPlan(
                intermediate_size=size, name="shared_mlp", field="shared_intermediate_size", gated=False
            )
            if size
            else None,
            fused=FusedExpertsPlan(transposed=False),
            field="num_local_experts",
            size_field="intermediate_size",
        )

    def check(self) -> None:
        super().check()
        check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
