"""Matrix products of two to 256 rows in one wave over the device, and gated ones of many rows with the gate inside;
otherwise those of `gemm` beside this.

The shape alone decides which one is used, so it is the same in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel import gemm as waves
from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.cuda import gemm

available = waves.available


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    if _fits(x, weight) and (plan := waves.plan(len(x), *weight.shape)) is not None:
        return waves.linear(x, weight, bias, plan)
    return gemm.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Implements the op `gated_linear`. `kernels/gemm.py` describes its arguments and result."""
    if _fits(x, weight) and activation in waves.GATES:
        plan = waves.plan(len(x), *weight.shape, gated=True)
        if plan is not None:
            return waves.linear(x, weight, bias, plan, gate=activation)
    return gated[activation](linear(x, weight, bias))


def _fits(x: Tensor, weight: Tensor) -> bool:
    """True if these are bfloat16 matrices in the form that the copy engine reads. One row needs no tensor cores."""
    return (
        x.dtype is weight.dtype is torch.bfloat16
        and x.dim() == 2
        and len(x) > 1
        and x.stride(1) == 1
        and x.stride(0) % 8 == 0
        and weight.is_contiguous()
        and x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    )
