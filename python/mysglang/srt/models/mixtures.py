"""Mixtures of experts, built from their plans: in place of an MLP, or beside one."""

from __future__ import annotations

from msgspec import structs
from torch import nn

from mysglang.srt.configs.layer_plan import (
    GatedMlpPlan,
    MixturePlan,
    MlpAndExpertsPlan,
    PlainMlpPlan,
    SharedExpertPlan,
)
from mysglang.srt.layers.activation import expert_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP, PlainMLP
from mysglang.srt.layers.moe.beside_mlp import MlpAndExperts
from mysglang.srt.layers.moe.experts import MixtureOfExperts, Narrow, SharedExpert
from mysglang.srt.layers.moe.parameter import FusedLayout
from mysglang.srt.layers.moe.router import Routing
from mysglang.srt.models.decoder_layers import gated_mlp, head_norm_of, plain_mlp


def mixture(plan: MixturePlan, hidden_size: int, context: LayerContext) -> nn.Module:
    router, shared, narrow = plan.router, plan.shared, plan.narrow
    return MixtureOfExperts(
        hidden_size,
        plan.experts,
        plan.intermediate_size,
        expert_activation(plan.activation, gated=plan.gated),
        Routing(**structs.asdict(router)),
        shared=None if shared is None else shared_expert(shared, plan, hidden_size),
        narrow=None if narrow is None else Narrow(**structs.asdict(narrow)),
        bias=plan.bias,
        fused=None if plan.fused is None else FusedLayout(**structs.asdict(plan.fused)),
        context=context,
    )


def mlp_and_experts(plan: MlpAndExpertsPlan, hidden_size: int, context: LayerContext) -> nn.Module:
    mixture = plan.mixture
    assert mixture.fused is not None, "checkpoints have all experts in one tensor"
    return MlpAndExperts(
        hidden_size,
        plan.mlp.intermediate_size,
        plan.mlp.activation,
        experts=mixture.experts,
        expert_size=mixture.intermediate_size,
        routing=Routing(**structs.asdict(mixture.router)),
        fused=FusedLayout(**structs.asdict(mixture.fused)),
        norm=lambda: head_norm_of(plan.norm, hidden_size, context),
        context=context,
    )


def shared_expert(plan: SharedExpertPlan, mixture: MixturePlan, hidden_size: int) -> SharedExpert:
    size, activation = plan.intermediate_size, mixture.activation
    gated = GatedMlpPlan(intermediate_size=size, activation=activation, bias=plan.bias)
    plain = PlainMlpPlan(intermediate_size=size, activation=activation, bias=plan.bias)

    def build(inside: LayerContext) -> GatedMLP | PlainMLP:
        return gated_mlp(gated, hidden_size, inside) if mixture.gated else plain_mlp(plain, hidden_size, inside)

    return SharedExpert(plan.name, build, plan.gated)
