"""describe: a dense decoder as plain tensors, for whoever computes it in another way than layer by layer.

What can be said is attention with rotary positions and a gated MLP, a norm before each, plain weights, one rank. The
plan and the linears tell whether that is all that a model is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from mysglang.srt.configs.layer_plan import DecoderPlan, GatedMlpPlan, NormPlan
from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import LinearBase
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.decoder import DecoderLayer


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """x weightᵀ + bias. weight: [output, input]; bias: [output] or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseNorm:
    """An RMSNorm. weight: [hidden]."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """x += o(attention(qkv(norm(x)))), then x += down(act(gate(y)) * up(y)) with y = norm(x)."""

    input_norm: DenseNorm
    qkv: DenseLinear
    """All query heads, then all keys', then all values'."""
    rotation: Rotation
    spec: AttentionSpec
    o: DenseLinear
    post_norm: DenseNorm
    gate_up: DenseLinear
    """The gate's rows, then those of up."""
    activation: str
    down: DenseLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDecoder:
    """Embedding, layers, norm, logits."""

    embedding: Tensor
    """[vocab, hidden]."""
    layers: tuple[DenseLayer, ...]
    norm: DenseNorm
    lm_head: Tensor
    """[vocab, hidden]."""


class CannotDescribe(Exception):
    """Says what of a model a description has no words for."""


def describe(model: CausalLM) -> DenseDecoder:
    """The tensors are the model's own. Raises CannotDescribe."""
    plan = model.plan
    if reasons := unsaid(plan):
        raise CannotDescribe("; ".join(reasons))
    if model.embed_tokens.tp.size > 1:
        raise CannotDescribe("its weights are split over ranks")
    return DenseDecoder(
        embedding=model.embed_tokens.weight,
        layers=tuple(_layer(layer) for layer in model.decoder_layers()),
        norm=_norm(model.norm),
        lm_head=_linear(model.lm_head).weight,
    )


def unsaid(plan: DecoderPlan) -> list[str]:
    """What of the plan a description has no words for."""
    reasons = {
        "its embeddings are scaled": plan.embedding_scale != 1.0,
        "its logits are capped": plan.logit_cap != 0.0,
        "its norms multiply by 1 + w": any(norm.kind != "rms" for norm in _norms(plan)),
        "its layers have norms after attention or MLP": any(
            layer.norms.after_attention or layer.norms.after_mlp for layer in plan.layers
        ),
        "it has layers without rotary positions": any(layer.attention.rope is None for layer in plan.layers),
        "its layers have MLPs of another kind": not all(isinstance(layer.mlp, GatedMlpPlan) for layer in plan.layers),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _norms(plan: DecoderPlan) -> Iterator[NormPlan]:
    yield plan.norm
    for layer in plan.layers:
        yield layer.norms.norm
        if layer.attention.qk_norm is not None:
            yield layer.attention.qk_norm


def _layer(layer: DecoderLayer) -> DenseLayer:
    attention, mlp, (input_norm, post_norm) = layer.self_attn, cast(GatedMLP, layer.mlp), layer.norms_before
    rotation = attention.rotation()
    assert rotation is not None, "the plan says so"
    return DenseLayer(
        input_norm=_norm(input_norm),
        qkv=_linear(attention.qkv_proj),
        rotation=rotation,
        spec=attention.attn.spec,
        o=_linear(attention.o_proj),
        post_norm=_norm(post_norm),
        gate_up=_linear(mlp.gate_up_proj),
        activation=mlp.gate_up_proj.activation,
        down=_linear(mlp.down_proj),
    )


def _norm(norm: RMSNorm) -> DenseNorm:
    return DenseNorm(norm.gain, norm.eps)


def _linear(linear: LinearBase) -> DenseLinear:
    weight = linear.method.dense_weight(linear)
    if weight is None:
        raise CannotDescribe("its weights are quantized")
    return DenseLinear(weight, linear.bias)
