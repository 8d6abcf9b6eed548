"""Matrix products of one to four rows in Triton; for more rows, or where it is better, cuBLAS.

Such a product is as fast as its weights are read. Each program reads a few rows of the weight, the next tile while it
multiplies the last, and the first tile before the kernel ahead of it is done. Multiplications are float32 on plain
cores: tensor cores would only be waiting. Every sum has a fixed order, so results are the same in every run.
"""

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

ALWAYS_ROWS = 2
"""Up to here reading weights takes longer than multiplying, whatever their shape."""
MOST_ROWS = 4
MOST_PRODUCTS = 1 << 24
"""Above two rows multiplying is what takes the time. Less than this many products are done in about the time by which
cuBLAS starts and ends later than the kernel here."""


@triton.jit
def _few_rows_kernel(
    x,
    weight,
    bias,
    out,
    x_stride,
    rows,
    outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    FOLD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """OUTPUTS columns of the result for all rows. Of ROWS > 1 each FOLD neighbouring products are added at once."""
    if OVERLAP:
        gdc_launch_dependents()
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    exists = n[:, None] < outputs
    tile = weight + n.to(tl.int64)[:, None] * inputs + k[None, :]
    ahead = tl.load(tile, mask=exists & (k[None, :] < inputs), other=0.0)
    if OVERLAP:
        gdc_wait()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums += (tl.zeros((OUTPUTS, INPUTS // FOLD), tl.float32),)
    for at in range(0, inputs, INPUTS):
        weights = ahead.to(tl.float32)
        ahead = tl.load(tile + at + INPUTS, mask=exists & (at + INPUTS + k[None, :] < inputs), other=0.0)
        added = ()
        for row in tl.static_range(ROWS):
            inside = (at + k < inputs) & (row < rows)
            values = tl.load(x + row * x_stride + at + k, mask=inside, other=0.0).to(tl.float32)
            products = weights * values[None, :]
            if FOLD > 1:
                products = tl.sum(tl.reshape(products, (OUTPUTS, INPUTS // FOLD, FOLD)), 2)
            added += (sums[row] + products,)
        sums = added
    for row in tl.static_range(ROWS):
        total = tl.sum(sums[row], 1)
        if HAS_BIAS:
            total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
        tl.store(out + row * outputs + n, total, mask=(n < outputs) & (row < rows))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `kernels.gemm.linear`."""
    outputs, inputs = weight.shape
    rows = x.numel() // inputs
    if not is_for_few_rows(rows, outputs, inputs) or not weight.is_contiguous() or not dense_rows(x):
        return F.linear(x, weight, bias)
    out = x.new_empty(*x.shape[:-1], outputs)
    block_outputs, block_inputs, warps = tile_of(rows, outputs, inputs)
    _few_rows_kernel[(triton.cdiv(outputs, block_outputs),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        inputs if x.dim() == 1 else x.stride(0),
        rows,
        outputs,
        inputs,
        HAS_BIAS=bias is not None,
        ROWS=triton.next_power_of_2(rows),
        OUTPUTS=block_outputs,
        INPUTS=block_inputs,
        FOLD=8 if rows > 1 else 1,
        num_warps=warps,
        **overlapping(x),
    )
    return out


def is_for_few_rows(rows: int, outputs: int, inputs: int) -> bool:
    """Whether the kernel here is the better one."""
    if rows <= ALWAYS_ROWS:
        return rows > 0
    return rows <= MOST_ROWS and MOST_ROWS * outputs * inputs < MOST_PRODUCTS


def tile_of(rows: int, outputs: int, inputs: int) -> tuple[int, int, int]:
    """(outputs, inputs, warps) of one program.

    A thread has eight loads of 16 bytes on their way for one row, four or two where it holds more. With 256 inputs to
    a warp, every thread finds its own values of x at once.
    """
    if rows == 1:
        if inputs > 2048:
            return 2, 4096, 4
        return (2, 2048, 2) if inputs > 1024 else (16, 512, 4)
    return (4, 1024, 4) if outputs >= 4096 else (4, 2048, 8)


def dense_rows(x: Tensor) -> bool:
    """Whether x is [inputs] or [rows, inputs] with nothing between the values of a row."""
    return x.dim() <= 2 and x.stride(-1) == 1
