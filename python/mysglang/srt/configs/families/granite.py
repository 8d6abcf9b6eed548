"""Config classes of the Granite family: dense models, models with experts, and hybrids with Mamba-2 layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    Experts,
    Factor,
    Positions,
    Width,
    check_experts,
    check_layer_types,
)
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    FusedExpertsPlan,
    GatedMlpPlan,
    LayerPlan,
    MixerPlan,
    MixturePlan,
    MlpPlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)
from mysglang.srt.configs.mamba_config import FULL, LINEAR, MambaConfig, check_attends, named_layers


class GraniteConfig(LlamaConfig, frozen=True, kw_only=True):
    """Granite 3 and 4 (dense): Llama with a factor at the embeddings, at scores, at the residual stream and at logits.

    Scores have `attention_multiplier` in the place of 1 / sqrt(head_dim); logits are divided by `logits_scaling`.
    """

    embedding_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    residual_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            embedding_scale=self.embedding_multiplier,
            scales_vectors=True,
            logit_scale=1 / self.logits_scaling,
        )

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), residual_scale=self.residual_multiplier)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), scale=self.attention_multiplier)


NAMES = (
    ("block_sparse_moe.router.layer", "mlp.gate"),
    ("block_sparse_moe.input_linear.weight", "mlp.experts.w13_weight"),
    ("block_sparse_moe.output_linear.weight", "mlp.experts.w2_weight"),
    ("shared_mlp.input_linear", "mlp.shared_mlp.gate_up_proj"),
    ("shared_mlp.output_linear", "mlp.shared_mlp.down_proj"),
)


class GraniteMoeConfig(GraniteConfig, frozen=True, kw_only=True):
    """Granite 3 with experts, and with an MLP beside them that every token goes through.

    `intermediate_size` is that of each expert. Without `shared_intermediate_size` there is no such MLP.
    """

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


MIXED = (
    ("block_sparse_moe.input_linear.weight", "mlp.experts.w13_weight"),
    ("block_sparse_moe.output_linear.weight", "mlp.experts.w2_weight"),
    ("block_sparse_moe.router.layer", "mlp.gate"),
    ("shared_mlp.input_linear", "mlp.shared_mlp.gate_up_proj"),
    ("shared_mlp.output_linear", "mlp.shared_mlp.down_proj"),
)
DENSE = ("shared_mlp.input_linear", "mlp.gate_up_proj"), ("shared_mlp.output_linear", "mlp.down_proj")


SHARED: Any = {"name": "shared_mlp", "field": "shared_intermediate_size", "gated": False}


class GraniteHybridConfig(MambaConfig, frozen=True, kw_only=True):
    """Granite 4 (hybrid): Mamba-2 layers, a few that attend, a shared MLP, maybe experts, and the factors of Granite.

    `intermediate_size` is that of each expert. Heads are only turned with `position_embedding_type: "rope"`.
    """

    other_names: ClassVar[Mapping[str, str]] = {"layers_block_type": "layer_types"}

    max_position_embeddings: Positions = 2048
    attention_bias: bool = False
    embedding_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    residual_multiplier: Factor = 1.0
    logits_scaling: Factor = 1.0
    num_local_experts: Count = 8
    num_experts_per_tok: Experts = 2
    shared_intermediate_size: Width = 1024
    position_embedding_type: str | None = None
    layer_types: list[str] | None = None

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(
            super().plan(rope),
            embedding_scale=self.embedding_multiplier,
            scales_vectors=True,
            logit_scale=1 / self.logits_scaling,
            renamed=MIXED if self.num_local_experts else DENSE,
        )

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        return replace(super().layer(index, rope), residual_scale=self.residual_multiplier)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        return self.attention(index, rope) if self.types[index] == FULL else self.mamba()

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        bias, turned = self.attention_bias, rope if self.position_embedding_type == "rope" else None
        plan = super().attention(index, rope)
        return replace(plan, rope=turned, scale=self.attention_multiplier, bias=bias, output_bias=bias)

    def mlp(self, index: int) -> MlpPlan:
        if not self.num_local_experts:
            return GatedMlpPlan(intermediate_size=self.shared_intermediate_size, activation=self.hidden_act)
        return MixturePlan(
            experts=self.num_local_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.num_experts_per_tok, renormalize=True),
            shared=SharedExpertPlan(intermediate_size=self.shared_intermediate_size, **SHARED),
            field="num_local_experts",
            size_field="intermediate_size",
        )

    @property
    def types(self) -> list[str]:
        """Type of each layer; without `layer_types`, no layer attends."""
        return named_layers(self.layer_types or [LINEAR] * self.num_hidden_layers)

    def check(self) -> None:
        super().check()
        check_layer_types(self.types, self.num_hidden_layers, (FULL, LINEAR))
        check_attends(FULL in self.types)
        if self.num_local_experts:
            check_experts(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")
