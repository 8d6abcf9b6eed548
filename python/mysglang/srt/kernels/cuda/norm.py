"""RMS norms in Triton: one program normalises one row, which it reads and writes once."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping


@triton.jit
def _rms_norm_kernel(x, weight, out, x_stride, dim, eps, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / dim + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * dim + columns, values * scale * gain, mask=inside)


@triton.jit
def _fused_add_rms_norm_kernel(
    x,
    residual,
    weight,
    normed,
    total,
    x_stride,
    residual_stride,
    normed_stride,
    total_stride,
    dim,
    eps,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
    # The sum is rounded to its stored dtype before it is normalised.
    rounded = values.to(residual.dtype.element_ty)
    tl.store(total + row * total_stride + columns, rounded, mask=inside)
    values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / dim + eps)
    tl.store(normed + row * normed_stride + columns, values * scale * gain, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.norm.rms_norm`. x: [..., dim], rows dense."""
    dim = x.shape[-1]
    rows = x.reshape(-1, dim)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(dim)
    _rms_norm_kernel[(len(rows),)](
        rows, weight, out, rows.stride(0), dim, eps, BLOCK=block, num_warps=_warps(block), **overlapping(x)
    )
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `kernels.norm.fused_add_rms_norm`: the norm overwrites x, the sum overwrites residual. Both [T, dim]."""
    _add_and_norm(x, residual, weight, eps, x, residual)
    return x, residual


def sum_and_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `kernels.norm.sum_and_norm`."""
    total, normed = torch.empty_like(residual), torch.empty_like(x)
    _add_and_norm(x, residual, weight, eps, normed, total)
    return total, normed


def _add_and_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, normed: Tensor, total: Tensor) -> None:
    """Writes the sum and its norm; both may be written over an argument."""
    dim = x.shape[-1]
    block = triton.next_power_of_2(dim)
    _fused_add_rms_norm_kernel[(len(x),)](
        x,
        residual,
        weight,
        normed,
        total,
        *(each.stride(0) for each in (x, residual, normed, total)),
        dim,
        eps,
        BLOCK=block,
        num_warps=_warps(block),
        **overlapping(x),
    )


def _warps(block: int) -> int:
    """Returns the number of warps that gives each thread about eight values."""
    return min(max(block // 256, 1), 16)
