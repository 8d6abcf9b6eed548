"""Products with bfloat16 weights that our C++ kernel has packed; the others as in `gemm` beside this."""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel.cpu import gemm as packed
from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.cpu import gemm

available = packed.available


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels/gemm.py`."""
    if not packed.is_packed(weight):
        return gemm.linear(x, weight, bias)
    if x.dim() == 2 and x.stride(1) == 1:
        return packed.linear(x, weight, bias)
    out = packed.linear(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], out.shape[-1])


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """See `kernels/gemm.py`."""
    halves = packed.is_packed(weight) and len(weight) % 2 == 0
    if halves and activation in packed.ACTIVATIONS and x.dim() == 2 and x.stride(1) == 1:
        return packed.linear(x, weight, bias, activation=activation)
    return gated[activation](linear(x, weight, bias))


def pack_linear_weight(weight: Tensor) -> Tensor:
    """See `kernels/gemm.py`."""
    if weight.dtype is torch.bfloat16 and packed.packs(weight):
        return packed.pack(weight)
    return gemm.pack_linear_weight(weight)


def unpack_linear_weight(weight: Tensor) -> Tensor:
    """See `kernels/gemm.py`."""
    return packed.unpack(weight) if packed.is_packed(weight) else gemm.unpack_linear_weight(weight)
