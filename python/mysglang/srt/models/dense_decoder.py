"""describe: a dense decoder as plain tensors, for whoever computes it in another way than layer by layer.

It describes what it knows for certain, by the classes that the layers are made of: attention with rotary positions, a
gated MLP, plain weights, one rank. Anything else, a subclass that computes otherwise included, has no description.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.decoder_blocks import GatedMLP, QKNormRopeAttention, RopeAttention
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import (
    GatedColumnParallelLinear,
    LinearBase,
    QKVParallelLinear,
    RowParallelLinear,
)
from mysglang.srt.layers.quantization.unquantized import UnquantizedLinearMethod
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.interfaces import CausalModel
from mysglang.srt.models.llama import LlamaDecoderLayer

LINEARS = (QKVParallelLinear, RowParallelLinear, GatedColumnParallelLinear)


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

    @classmethod
    def of(cls, norm: RMSNorm) -> DenseNorm:
        return cls(norm.weight, norm.eps)


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


def describe(model: CausalModel) -> DenseDecoder | None:
    """The tensors are the model's own. None for a model that is made of anything else."""
    if not isinstance(model, CausalLM) or not computes_as(model, CausalLM) or model.embed_tokens.tp.size > 1:
        return None
    layers = [_layer(layer) for layer in model.layers.values()]
    known = tuple(layer for layer in layers if layer is not None)
    if len(known) < len(layers):
        return None
    return DenseDecoder(
        embedding=model.embed_tokens.weight,
        layers=known,
        norm=DenseNorm.of(model.norm),
        lm_head=model.lm_head.weight,
    )


def computes_as(module: nn.Module, known: type[nn.Module]) -> bool:
    """Whether the module runs the forward of the class that is known here."""
    return isinstance(module, known) and type(module).forward is known.forward


def _layer(layer: nn.Module) -> DenseLayer | None:
    if not isinstance(layer, LlamaDecoderLayer) or not computes_as(layer, LlamaDecoderLayer):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    if type(attention) not in (RopeAttention, QKNormRopeAttention) or type(mlp) is not GatedMLP:
        return None
    linears = [_linear(linear) for linear in (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)]
    known = [linear for linear in linears if linear is not None]
    if len(known) < len(linears):
        return None
    qkv, o, gate_up, down = known
    return DenseLayer(
        input_norm=DenseNorm.of(layer.input_layernorm),
        qkv=qkv,
        rotation=attention.rotation(),
        spec=attention.attn.spec,
        o=o,
        post_norm=DenseNorm.of(layer.post_attention_layernorm),
        gate_up=gate_up,
        activation=mlp.gate_up_proj.activation,
        down=down,
    )


def _linear(linear: LinearBase) -> DenseLinear | None:
    if type(linear) not in LINEARS or type(linear.method) is not UnquantizedLinearMethod or linear.tp.size > 1:
        return None
    weight = linear.weight
    assert isinstance(weight, Tensor)
    return DenseLinear(weight, linear.bias)
