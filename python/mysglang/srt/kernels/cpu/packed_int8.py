"""Products of bfloat16 rows with int8 weights that our C++ kernel has packed; others as in the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel.cpu import gemm as packed
from mysglang.srt.kernels import int8_gemm
from mysglang.srt.kernels.activation import Activation, gated

available = packed.compiles
"""Also where bfloat16 weights are better left to oneDNN, which has no product of int8 weights with bfloat16 rows."""


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels/int8_gemm.py`."""
    if not packed.is_packed(weight):
        return int8_gemm.int8_linear.reference(x, weight, scales, bias)
    if x.dtype is not torch.bfloat16:
        return int8_gemm.int8_linear.reference(x, packed.unpack(weight), scales, bias)
    flat = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1])
    out = packed.linear(flat, weight, bias, scales=scales)
    return out.view(*x.shape[:-1], out.shape[-1])


def int8_gated_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """See `kernels/int8_gemm.py`."""
    halves = packed.is_packed(weight) and len(weight) % 2 == 0
    rows = x.dtype is torch.bfloat16 and x.dim() == 2 and x.stride(1) == 1
    if halves and rows and activation in packed.ACTIVATIONS:
        return packed.linear(x, weight, bias, scales=scales, activation=activation)
    return gated[activation](int8_linear(x, weight, scales, bias))


def pack_int8_weight(weight: Tensor) -> Tensor:
    """See `kernels/int8_gemm.py`."""
    return packed.pack(weight) if packed.packs(weight) else weight


def unpack_int8_weight(weight: Tensor) -> Tensor:
    """See `kernels/int8_gemm.py`."""
    return packed.unpack(weight) if packed.is_packed(weight) else weight
