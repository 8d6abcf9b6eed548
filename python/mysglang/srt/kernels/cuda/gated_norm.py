"""Norms of what the heads of a mixer give, together with the gate, in Triton: each group is read and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

VALUES = 1024
"""Values of a program, or one group where that has more."""


@triton.jit(do_not_specialize=["count"])
def _gated_norm_kernel(
    x,
    gate,
    weight,
    out,
    x_row,
    x_group,
    gate_row,
    gate_group,
    weight_group,
    count,
    eps,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    SIGMOID: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Normalises groups of rows, of which there are `count` in all."""
    if OVERLAP:
        gdc_launch_dependents()
    number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = (number // GROUPS).to(tl.int64)
    group = number % GROUPS
    column = tl.arange(0, BLOCK)
    inside = (number < count)[:, None] & (column < SIZE)[None, :]
    gain = tl.load(weight + group[:, None] * weight_group + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    values = tl.load(x + (row * x_row + group * x_group)[:, None] + column[None, :], mask=inside, other=0.0)
    gates = tl.load(gate + (row * gate_row + group * gate_group)[:, None] + column[None, :], mask=inside, other=0.0)
    values, gates = values.to(tl.float32), gates.to(tl.float32)
    opened = tl.sigmoid(gates)
    if not SIGMOID:
        opened *= gates
    if GATE_FIRST:
        values = values * opened
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / SIZE + eps)
    # Without SIGMOID, the normed value is rounded before it meets the weight, and their product too, as the reference
    # rounds them.
    normed = values * scale[:, None]
    if SIGMOID:
        normed = normed * gain * opened
    else:
        normed = normed.to(out.dtype.element_ty).to(tl.float32) * gain
        if not GATE_FIRST:
            normed = normed.to(out.dtype.element_ty).to(tl.float32) * opened
    tl.store(out + (row * GROUPS + group)[:, None] * SIZE + column[None, :], normed, mask=inside)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, sigmoid: bool = False) -> Tensor:
    """See `kernels/gated_norm.py`. x, gate: [N, groups, D], the last dimension dense; weight: [D] or [groups, D],
    in x's dtype.
    """
    return _normed(x, weight, gate, eps, gate_first=False, sigmoid=sigmoid)


def gated_group_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, groups: int) -> Tensor:
    """See `kernels/gated_norm.py`. Rows of x and gate may lie in wider ones."""
    parts, gains, gates = (each.unflatten(-1, (groups, x.shape[1] // groups)) for each in (x, weight, gate))
    return _normed(parts, gains, gates, eps, gate_first=True).view(x.shape)


def _normed(x: Tensor, weight: Tensor, gate: Tensor, eps: float, *, gate_first: bool, sigmoid: bool = False) -> Tensor:
    count, groups, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    rows = max(VALUES // block, 1)
    _gated_norm_kernel[(triton.cdiv(count * groups, rows),)](
        x,
        gate,
        weight,
        out,
        x.stride(0),
        x.stride(1),
        gate.stride(0),
        gate.stride(1),
        weight.stride(0) if weight.dim() == 2 else 0,
        count * groups,
        eps,
        GROUPS=groups,
        SIZE=size,
        GATE_FIRST=gate_first,
        SIGMOID=sigmoid,
        ROWS=rows,
        BLOCK=block,
        num_warps=min(max(rows * block // 512, 1), 16),
        **overlapping(x),
    )
    return out
