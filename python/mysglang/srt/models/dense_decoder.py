"""describe: the weights of a decoder as plain tensors, for a kernel that computes all layers in one launch.

A model can be described if each layer is attention with rotary positions and a gated MLP, or a mixture of such experts,
with a norm before each, and if its weights are not quantized and not divided among ranks. The plan and the linear
layers show whether this holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict, cast

from torch import Tensor, nn

from mysglang.srt.configs.layer_plan import (
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpPlan,
    NormPlan,
    RouterPlan,
)
from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.decoder_blocks import GatedMLP, PagedAttention
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import LinearBase
from mysglang.srt.layers.moe.experts import MixtureOfExperts
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.decoder_layers import DecoderLayer


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A linear layer: x weightᵀ + bias. weight: [output, input]; bias: [output] or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseNorm:
    """An RMSNorm. weight: [hidden]."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class DenseRouter:
    """The choice of a token's experts: those of the highest logits x weightᵀ + bias. A gate is the expert's share of a
    softmax over all logits.
    """

    weight: Tensor
    """[experts, hidden]."""
    bias: Tensor | None
    """[experts], or None."""
    top_k: int
    renormalize: bool
    """True if the gates of a token's experts are divided by their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A layer: x += o(attention(qkv(norm(x)))), then x += down(act(gate(y)) * up(y)) with y = norm(x); or the sum of
    that over the token's experts, each times its gate.
    """

    input_norm: DenseNorm
    qkv: DenseLinear
    """All query heads, then all keys', then all values'."""
    rotation: Rotation
    spec: AttentionSpec
    o: DenseLinear
    post_norm: DenseNorm
    router: DenseRouter | None
    """None: there are no experts."""
    gate_up: DenseLinear
    """The gate's rows, then those of up. Experts have theirs stacked: [experts, 2 * inner, hidden]."""
    activation: str
    down: DenseLinear
    """Experts have theirs stacked: [experts, hidden, inner]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDecoder:
    """A decoder as plain tensors: embedding, layers, norm, logits."""

    embedding: Tensor
    """[vocab, hidden]."""
    layers: tuple[DenseLayer, ...]
    norm: DenseNorm
    lm_head: Tensor
    """[vocab, hidden]."""


class CannotDescribe(Exception):
    """Raised for a model that a description cannot express, with the reason."""


def describe(model: CausalLM) -> DenseDecoder:
    """Describes a model by its tensors. Raises CannotDescribe."""
    plan = model.plan
    if reasons := unsaid(plan):
        raise CannotDescribe("; ".join(reasons))
    if model.embed_tokens.tp.size > 1:
        raise CannotDescribe("its weights are split over ranks")
    return DenseDecoder(
        embedding=model.embed_tokens.weight,
        layers=tuple(map(_layer, model.decoder_layers(), plan.layers)),
        norm=_norm(_rms(model.norm)),
        lm_head=_linear(model.lm_head).weight,
    )


def unsaid(plan: DecoderPlan) -> list[str]:
    """Returns the parts of the plan that a description cannot express."""
    reasons = {
        "its embeddings are scaled": plan.embedding_scale != 1.0,
        "its logits are scaled": plan.logit_scale != 1.0,
        "its logits are capped": plan.logit_cap != 0.0,
        "what its layers give is scaled": any(layer.residual_scale != 1.0 for layer in plan.layers),
        "its layers lack the norms before attention and MLP": not all(
            layer.norms.before_attention and layer.norms.before_mlp for layer in plan.layers
        ),
        "some layers attend within chunks": any(each.chunked for each in plan.attentions),
        "it scales queries by their positions": any(each.tempering is not None for each in plan.attentions),
        "it norms values": any(each.value_norm is not None for each in plan.attentions),
        "some layers attend over keys of others": not all(each.stores for each in plan.attentions),
        "its layers have inputs of their own": plan.inputs is not None,
        "it has several residual streams": plan.altup is not None,
        "its layers scale the residual stream": any(layer.scaled_stream for layer in plan.layers),
        "it norms heads that are turned": any(each.qk_norm_turned for each in plan.attentions),
        "it adds learned positions to its embeddings": plan.positions is not None,
        "its logits have a bias": plan.head_bias,
        "it divides rows of the projection to logits by their lengths": plan.unit_head,
        "it norms all heads of queries and keys together": any(each.qk_norm_whole for each in plan.attentions),
        "its norms multiply by 1 + w": any(norm.kind == "rms_plus_one" for norm in _norms(plan)),
        "its norms subtract the mean": any(norm.kind.startswith("layer") for norm in _norms(plan)),
        "it computes attention and MLP side by side": any(layer.parallel for layer in plan.layers),
        "its layers have norms after attention or MLP": any(
            layer.norms.after_attention or layer.norms.after_mlp for layer in plan.layers
        ),
        "some layers keep a state and attend over no keys": plan.has_states,
        "it has layers without rotary positions": any(each.rope is None for each in plan.attentions),
        "what its heads give is multiplied by a gate": any(each.output_gate for each in plan.attentions),
        "its keys and values are latent": any(each.latent is not None for each in plan.attentions),
        "its layers have MLPs of another kind": not all(map(_said, (layer.mlp for layer in plan.layers))),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _said(mlp: MlpPlan) -> bool:
    """True for a gated MLP, and for experts that are chosen and added up in the plainest way."""
    if not isinstance(mlp, MixturePlan):
        return isinstance(mlp, GatedMlpPlan)
    router = mlp.router
    plain = RouterPlan(kind="softmax", top_k=router.top_k, renormalize=router.renormalize, bias=router.bias)
    return router == plain and mlp.gated and mlp.shared is None and mlp.narrow is None


def _norms(plan: DecoderPlan) -> Iterator[NormPlan]:
    yield plan.norm
    for layer in plan.layers:
        yield layer.norms.norm
    for attention in plan.attentions:
        if attention.qk_norm is not None:
            yield attention.qk_norm


def _layer(layer: DecoderLayer, plan: LayerPlan) -> DenseLayer:
    attention = cast(PagedAttention, layer.self_attn)
    input_norm, post_norm = layer.norms_before
    mlp = _mixture if isinstance(plan.mlp, MixturePlan) else _mlp
    rotation = attention.rotation()
    assert rotation is not None, "the plan says so"
    return DenseLayer(
        input_norm=_norm(_rms(input_norm)),
        qkv=_linear(attention.qkv_proj),
        rotation=rotation,
        spec=attention.attn.spec,
        o=_linear(attention.o_proj),
        post_norm=_norm(_rms(post_norm)),
        **mlp(layer.mlp),
    )


class DenseMlp(TypedDict):
    """The fields of a layer that its MLP fills."""

    router: DenseRouter | None
    gate_up: DenseLinear
    activation: str
    down: DenseLinear


def _mlp(module: nn.Module) -> DenseMlp:
    mlp = cast(GatedMLP, module)
    first, second = _linear(mlp.gate_up_proj), _linear(mlp.down_proj)
    return {"router": None, "gate_up": first, "activation": mlp.gate_up_proj.activation, "down": second}


def _mixture(module: nn.Module) -> DenseMlp:
    mixture = cast(MixtureOfExperts, module)
    experts, routing = mixture.experts, mixture.gate.routing
    weights = experts.method.dense_weights(experts)
    if weights is None:
        raise CannotDescribe("its weights are quantized")
    first, second = map(DenseLinear, weights, (experts.w13_bias, experts.w2_bias))
    gate = _linear(mixture.gate)
    router = DenseRouter(gate.weight, gate.bias, routing.top_k, routing.renormalize)
    return {"router": router, "gate_up": first, "activation": experts.activation, "down": second}


def _rms(norm: nn.Module) -> RMSNorm:
    """Returns a norm in the form of the description. Raises CannotDescribe for any other norm."""
    return cast(RMSNorm, norm)


def _norm(norm: RMSNorm) -> DenseNorm:
    return DenseNorm(norm.gain, norm.eps)


def _linear(linear: LinearBase) -> DenseLinear:
    weight = linear.method.dense_weight(linear)
    if weight is None:
        raise CannotDescribe("its weights are quantized")
    return DenseLinear(weight, linear.bias)
