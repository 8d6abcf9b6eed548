"""Activations of MLPs and experts. Most are gated: the first half of the last dimension through a function, times the
second half, which one of them clamps and shifts. And the soft cap of logits.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op

Activation = Literal["silu", "gelu", "gelu_tanh", "swigluoai", "relu2"]
UNGATED: tuple[Activation, ...] = ("relu2",)
"""Activations of one product, without a gate: [..., d] -> [..., d]."""
GatedOp = Op[[Tensor], Tensor]


def _silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def _gelu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate).mul_(up)


def _gelu_tanh_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
"""Constants of gpt-oss: the steepness of its gate's sigmoid, and the clamp of both halves."""


def _swigluoai_and_mul(x: Tensor) -> Tensor:
    """Computes g * sigmoid(alpha * g) * (clamp(up, ±limit) + 1) with g = min(gate, limit), in float32. Source: OpenAI's
    reference code of gpt-oss.
    """
    gate, up = x.float().chunk(2, dim=-1)
    gate = gate.clamp(max=SWIGLU_LIMIT)
    up = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return (gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)).to(x.dtype)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _soft_cap(x: Tensor, cap: float) -> Tensor:
    """Computes cap * tanh(x / cap), in float32. x: [N, width], rows at any distance. Overwrites x and returns it."""
    return x.copy_(torch.tanh(x.float() / cap).mul_(cap))


def _sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    """Computes x * sigmoid(gate). x, gate: [N, width], rows at any distance. Overwrites x and returns it."""
    return x.mul_(gate.sigmoid())


# All but those of UNGATED: [..., 2 * d] -> [..., d], contiguous, same dtype.
silu_and_mul = Op(
    "silu_and_mul",
    reference=_silu_and_mul,
    cpu="mysglang.srt.kernels.cpu.native:silu_and_mul",
    cuda="mysglang.srt.kernels.cuda.activation:silu_and_mul",
    invariant={
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:silu_and_mul",
            "mysglang.srt.kernels.cpu.invariant:silu_and_mul",
        )
    },
)
gelu_and_mul = Op(
    "gelu_and_mul",
    reference=_gelu_and_mul,
    cuda="mysglang.srt.kernels.cuda.activation:gelu_and_mul",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:gelu_and_mul"},
)
gelu_tanh_and_mul = Op(
    "gelu_tanh_and_mul",
    reference=_gelu_tanh_and_mul,
    cpu="mysglang.srt.kernels.cpu.native:gelu_tanh_and_mul",
    cuda="mysglang.srt.kernels.cuda.activation:gelu_tanh_and_mul",
    invariant={
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:gelu_tanh_and_mul",
            "mysglang.srt.kernels.cpu.invariant:gelu_tanh_and_mul",
        )
    },
)
swigluoai_and_mul = Op(
    "swigluoai_and_mul",
    reference=_swigluoai_and_mul,
    cuda="mysglang.srt.kernels.cuda.activation:swigluoai_and_mul",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:swigluoai_and_mul"},
)
relu2 = Op("relu2", reference=_relu2)
gated: dict[Activation, GatedOp] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
    "swigluoai": swigluoai_and_mul,
    "relu2": relu2,
}
"""The op of each activation, also of those of UNGATED."""

soft_cap = Op(
    "soft_cap",
    reference=_soft_cap,
    cuda="mysglang.srt.kernels.cuda.activation:soft_cap",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:soft_cap"},
)

sigmoid_gated = Op(
    "sigmoid_gated",
    reference=_sigmoid_gated,
    cuda="mysglang.srt.kernels.cuda.activation:sigmoid_gated",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:sigmoid_gated"},
)
