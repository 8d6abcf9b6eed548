"""Root-mean-square normalisation, alone and together with the residual addition before it.

Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019): x / sqrt(mean(x²) + eps) * weight.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise over the last dimension, in float32 inside. Returns a new tensor of x's shape and dtype.

    weight: of x's dtype, or float32.
    """
    if weight.dtype is x.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns (rms_norm(x + residual), x + residual), both of x's shape and dtype.

    Consumes both tensors: an implementation may write either result over either argument, so a caller uses nothing but
    what is returned.
    """
    residual = residual.add_(x)
    return _rms_norm(residual, weight, eps), residual


def _sum_and_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns (x + residual, rms_norm(x + residual)), both new. x, residual: [T, dim], of one dtype, rows dense."""
    total = x + residual
    return total, _rms_norm(total, weight, eps)


sum_and_norm = Op("sum_and_norm", reference=_sum_and_norm, cuda="mysglang.srt.kernels.cuda.norm:sum_and_norm")
rms_norm = Op(
    "rms_norm",
    reference=_rms_norm,
    cpu="mysglang.srt.kernels.cpu.native:rms_norm",
    cuda="mysglang.srt.kernels.cuda.norm:rms_norm",
    invariant={
        "cpu": ("mysglang.srt.kernels.cpu.invariant_native:rms_norm", "mysglang.srt.kernels.cpu.invariant:rms_norm")
    },
)
fused_add_rms_norm = Op(
    "fused_add_rms_norm",
    reference=_fused_add_rms_norm,
    cpu="mysglang.srt.kernels.cpu.native:fused_add_rms_norm",
    cuda="mysglang.srt.kernels.cuda.norm:fused_add_rms_norm",
    invariant={
        "cpu": (
            "mysglang.srt.kernels.cpu.invariant_native:fused_add_rms_norm",
            "mysglang.srt.kernels.cpu.invariant:fused_add_rms_norm",
        )
    },
)
