"""The gate of an expert that all rows have, in Triton: one program for a row computes it and adds up the row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

BLOCK = 4096
"""Most values of a row that are read together."""


@triton.jit
def share_of(x, weight, factors, inputs, INPUTS: tl.constexpr):
    """Computes sigmoid(x weight) in float32. x: at a row. factors: the first INPUTS of the weight, which a program may
    load before x is there.
    """
    i = tl.arange(0, INPUTS)
    products = tl.load(x + i, mask=i < inputs, other=0.0).to(tl.float32) * factors.to(tl.float32)
    for start in range(INPUTS, inputs, INPUTS):
        values = tl.load(x + start + i, mask=start + i < inputs, other=0.0).to(tl.float32)
        products += values * tl.load(weight + start + i, mask=start + i < inputs, other=0.0).to(tl.float32)
    return tl.sigmoid(tl.sum(products, 0))


@triton.jit
def _add_gated_kernel(
    shared,
    mixed,
    x,
    weight,
    x_stride,
    inputs,
    width,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Replaces a row of `shared` by mixed + sigmoid(x weight) * shared, computed in float32."""
    if OVERLAP:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, INPUTS)
    factors = tl.load(weight + i, mask=i < inputs, other=0.0)
    if OVERLAP:
        gdc_wait()
    gate = share_of(x + row * x_stride, weight, factors, inputs, INPUTS)
    n = tl.arange(0, WIDTH)
    for start in range(0, width, WIDTH):
        at, inside = row * width + start + n, start + n < width
        own = tl.load(shared + at, mask=inside, other=0.0).to(tl.float32)
        others = tl.load(mixed + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(shared + at, others + gate * own, mask=inside)


def add_gated(shared: Tensor, mixed: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Implements the op `add_gated`. `kernels/experts.py` describes its arguments and result."""
    rows, width = shared.shape
    inputs = x.shape[1]
    _add_gated_kernel[(rows,)](
        shared,
        mixed,
        x,
        weight,
        x.stride(0),
        inputs,
        width,
        INPUTS=min(BLOCK, triton.next_power_of_2(inputs)),
        WIDTH=min(BLOCK, triton.next_power_of_2(width)),
        num_warps=8,
        **overlapping(x),
    )
    return shared
