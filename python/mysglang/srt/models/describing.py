"""describe: the description of a decoder of ours, by its plan and its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import nn

from mysglang.srt.configs.layer_plan import (
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    MixturePlan,
    MlpPlan,
    NormPlan,
    RouterPlan,
)
from mysglang.srt.layers.decoder_blocks import GatedMLP, PagedAttention
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import LinearBase
from mysglang.srt.layers.moe.experts import MixtureOfExperts
from mysglang.srt.models.decoder import Decoder
from mysglang.srt.models.decoder_layers import DecoderLayer
from mysglang.srt.models.dense_decoder import (
    CannotDescribe,
    DenseDecoder,
    DenseLayer,
    DenseLinear,
    DenseMlp,
    DenseNorm,
    DenseRouter,
    dense_linear,
    dense_mlp,
    dense_norm,
)


def describe(model: Decoder, lm_head: LinearBase) -> DenseDecoder:
    """Describes a model by its tensors. Raises CannotDescribe."""
    plan = model.plan
    if reasons := unsaid(plan):
        raise CannotDescribe("; ".join(reasons))
    if model.embed_tokens.tp.size > 1:
        raise CannotDescribe("its weights are split over ranks")
    return DenseDecoder(
        embedding=model.embed_tokens.weight,
        layers=tuple(map(_layer, model.decoder_layers(), plan.layers)),
        norm=_norm(model.norm),
        lm_head=dense_linear(lm_head).weight,
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
    mlp = (_mixture if isinstance(plan.mlp, MixturePlan) else _mlp)(layer.mlp)
    rotation = attention.rotation()
    assert rotation is not None, "the plan says so"
    return DenseLayer(
        input_norm=_norm(input_norm),
        qkv=dense_linear(attention.qkv_proj),
        rotation=rotation,
        spec=attention.attn.spec,
        o=dense_linear(attention.o_proj),
        post_norm=_norm(post_norm),
        router=mlp.router,
        gate_up=mlp.gate_up,
        activation=mlp.activation,
        down=mlp.down,
    )


def _mlp(module: nn.Module) -> DenseMlp:
    return dense_mlp(cast(GatedMLP, module))


def _mixture(module: nn.Module) -> DenseMlp:
    mixture = cast(MixtureOfExperts, module)
    experts, routing = mixture.experts, mixture.gate.routing
    weights = experts.method.dense_weights(experts)
    if weights is None:
        raise CannotDescribe("its weights are quantized")
    first, second = map(DenseLinear, weights, (experts.w13_bias, experts.w2_bias))
    gate = dense_linear(mixture.gate)
    router = DenseRouter(gate.weight, gate.bias, routing.top_k, routing.renormalize)
    return DenseMlp(router=router, gate_up=first, activation=experts.activation, down=second)


def _norm(norm: nn.Module) -> DenseNorm:
    return dense_norm(cast(RMSNorm, norm))
