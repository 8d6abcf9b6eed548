"""DenseDecoder: a decoder as plain tensors, for a kernel that computes all layers in one launch.

A model describes itself so (`TokenModel.described`) if each layer is attention with rotary positions and a gated MLP,
or a mixture of such experts, with a norm before each, and if its weights are not quantized and not divided among ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import LinearBase


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
class DenseMlp:
    """A gated MLP, or experts and their router. The fields are those of `DenseLayer`."""

    router: DenseRouter | None
    gate_up: DenseLinear
    activation: str
    down: DenseLinear


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


DensePart: TypeAlias = DenseLinear | DenseNorm | DenseMlp
"""A layer, by what it computes."""


class CannotDescribe(Exception):
    """Raised for a model that a description cannot express, with the reason."""


def dense_linear(linear: LinearBase) -> DenseLinear:
    """Describes a linear layer. Raises CannotDescribe for quantized weights."""
    weight = linear.method.dense_weight(linear)
    if weight is None:
        raise CannotDescribe("its weights are quantized")
    return DenseLinear(weight, linear.bias)


def dense_mlp(mlp: GatedMLP) -> DenseMlp:
    """Describes a gated MLP. Raises CannotDescribe for quantized weights."""
    first, second = dense_linear(mlp.gate_up_proj), dense_linear(mlp.down_proj)
    return DenseMlp(router=None, gate_up=first, activation=mlp.gate_up_proj.activation, down=second)


def dense_norm(norm: RMSNorm) -> DenseNorm:
    """Describes an RMSNorm."""
    return DenseNorm(norm.gain, norm.eps)
