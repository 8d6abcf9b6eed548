"""Products of bfloat16 rows with weights, bfloat16 or int8, that our C++ kernel has packed; others as in `gemm` beside
this or in the reference.

With `alike` a row gets the same bits among any number of rows, if the weight is packed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel.cpu import gemm as packed
from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.cpu import gemm
from mysglang.srt.kernels.gemm import int8_linear as int8_linear_op

available = packed.available


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, alike: bool = False) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    if not packed.is_packed(weight):
        return gemm.linear(x, weight, bias)
    if x.dim() == 2 and x.stride(1) == 1:
        return packed.linear(x, weight, bias, alike=alike)
    out = packed.linear(x.reshape(-1, x.shape[-1]), weight, bias, alike=alike)
    return out.view(*x.shape[:-1], out.shape[-1])


def gated_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation, *, alike: bool = False
) -> Tensor:
    """Implements the op `gated_linear`. `kernels/gemm.py` describes its arguments and result."""
    halves = packed.is_packed(weight) and len(weight) % 2 == 0
    if halves and activation in packed.ACTIVATIONS and x.dim() == 2 and x.stride(1) == 1:
        return packed.linear(x, weight, bias, activation=activation, alike=alike)
    return gated[activation](linear(x, weight, bias, alike=alike))


def pack_linear_weight(weight: Tensor) -> Tensor:
    """Implements the op `pack_linear_weight`. `kernels/gemm.py` describes its arguments and result."""
    if weight.dtype is torch.bfloat16 and packed.packs(weight):
        return packed.pack(weight)
    return gemm.pack_linear_weight(weight)


def unpack_linear_weight(weight: Tensor) -> Tensor:
    """Implements the op `unpack_linear_weight`. `kernels/gemm.py` describes its arguments and result."""
    return packed.unpack(weight) if packed.is_packed(weight) else gemm.unpack_linear_weight(weight)


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, *, alike: bool = False) -> Tensor:
    """Implements the op `int8_linear`. `kernels/gemm.py` describes its arguments and result."""
    if not packed.is_packed(weight):
        return int8_linear_op.reference(x, weight, scales, bias)
    if x.dtype is not torch.bfloat16:
        return int8_linear_op.reference(x, packed.unpack(weight), scales, bias)
    flat = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, x.shape[-1])
    out = packed.linear(flat, weight, bias, scales=scales, alike=alike)
    return out.view(*x.shape[:-1], out.shape[-1])


def int8_gated_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, activation: Activation, *, alike: bool = False
) -> Tensor:
    """Implements the op `int8_gated_linear`. `kernels/gemm.py` describes its arguments and result."""
    halves = packed.is_packed(weight) and len(weight) % 2 == 0
    rows = x.dtype is torch.bfloat16 and x.dim() == 2 and x.stride(1) == 1
    if halves and rows and activation in packed.ACTIVATIONS:
        return packed.linear(x, weight, bias, scales=scales, activation=activation, alike=alike)
    return gated[activation](int8_linear(x, weight, scales, bias, alike=alike))


def pack_int8_weight(weight: Tensor) -> Tensor:
    """Implements the op `pack_int8_weight`. `kernels/gemm.py` describes its arguments and result."""
    return packed.pack(weight) if packed.packs(weight) else weight


def unpack_int8_weight(weight: Tensor) -> Tensor:
    """Implements the op `unpack_int8_weight`. `kernels/gemm.py` describes its arguments and result."""
    return packed.unpack(weight) if packed.is_packed(weight) else weight
