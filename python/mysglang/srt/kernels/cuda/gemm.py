"""Matrix products of a few rows in Triton; for more rows, or where it is better, cuBLAS.

Such a product is as fast as its weights are read. Each program reads a few rows of the weight: the next tile while it
multiplies the last, and the first tile before the kernel ahead of it is done. Every sum has a fixed order, so results
are the same in every run.
"""

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping

PLAIN_ROWS = 2
"""Up to this many rows, plain multiplications keep up with reading, whatever the shape of the weight."""
DOT_ROWS = 16
"""The most rows that fit one tensor core product."""
DOT_WEIGHT = 1 << 22
"""Values of the largest weight that is multiplied here on tensor cores: beyond, cuBLAS makes up for its slower start
and end, since its programs share the rows that here each reads for itself."""
WAVE = 8 * 132
"""Programs of four warps that an H200 runs at once."""


@triton.jit
def _products(weights, x, k, inputs, FOLD: tl.constexpr):
    """Multiplies one row of x with a tile of weights [OUTPUTS, INPUTS]; FOLD neighbouring products are added."""
    values = tl.load(x + k, mask=k < inputs, other=0.0).to(tl.float32)
    products = weights * values[None, :]
    if FOLD > 1:
        products = tl.sum(tl.reshape(products, (weights.shape[0], weights.shape[1] // FOLD, FOLD)), 2)
    return products


@triton.jit
def _plain_kernel(
    x,
    weight,
    bias,
    out,
    x_stride,
    outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    TWO: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    FOLD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes OUTPUTS columns of the result, of one row or of TWO, in float32 without tensor cores."""
    if OVERLAP:
        gdc_launch_dependents()
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    exists = n[:, None] < outputs
    tile = weight + n.to(tl.int64)[:, None] * inputs + k[None, :]
    # Weights are written by no kernel, so the first tile is read before the kernel ahead of this one is done.
    ahead = tl.load(tile, mask=exists & (k[None, :] < inputs), other=0.0)
    if OVERLAP:
        gdc_wait()
    first = tl.zeros((OUTPUTS, INPUTS // FOLD), tl.float32)
    second = tl.zeros((OUTPUTS, INPUTS // FOLD), tl.float32)
    for at in range(0, inputs, INPUTS):
        # The next tile is on its way while this one is multiplied.
        weights = ahead.to(tl.float32)
        ahead = tl.load(tile + at + INPUTS, mask=exists & (at + INPUTS + k[None, :] < inputs), other=0.0)
        first += _products(weights, x + at, k, inputs - at, FOLD)
        if TWO:
            second += _products(weights, x + x_stride + at, k, inputs - at, FOLD)
    added = tl.zeros((OUTPUTS,), tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out + n, tl.sum(first, 1) + added, mask=n < outputs)
    if TWO:
        tl.store(out + outputs + n, tl.sum(second, 1) + added, mask=n < outputs)


@triton.jit(do_not_specialize=["rows"])
def _dot_kernel(
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
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Computes OUTPUTS columns of the result for all rows on tensor cores. Each warp multiplies one part of a tile's
    inputs.
    """
    if OVERLAP:
        gdc_launch_dependents()
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    k = tl.arange(0, PARTS)[:, None] * INPUTS + tl.arange(0, INPUTS)[None, :]
    exists = n[None, None, :] < outputs
    tile = weight + n.to(tl.int64)[None, None, :] * inputs + k[:, :, None]
    ahead = tl.load(tile, mask=exists & (k[:, :, None] < inputs), other=0.0)
    if OVERLAP:
        gdc_wait()
    source = x + row[None, :, None] * x_stride + k[:, None, :]
    sums = tl.zeros((PARTS, ROWS, OUTPUTS), tl.float32)
    for at in range(0, inputs, PARTS * INPUTS):
        weights = ahead
        values = tl.load(source + at, mask=(row[None, :, None] < rows) & (at + k[:, None, :] < inputs), other=0.0)
        beyond = at + PARTS * INPUTS
        ahead = tl.load(tile + beyond, mask=exists & (beyond + k[:, :, None] < inputs), other=0.0)
        sums = tl.dot(values, weights, sums, input_precision="ieee")
    total = tl.sum(sums, 0)
    inside = (row[:, None] < rows) & (n[None, :] < outputs)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out + row[:, None] * outputs + n[None, :], total, mask=inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    rows = x.numel() // weight.shape[1]
    if not weight.is_contiguous() or not _rows_are_dense(x):
        return F.linear(x, weight, bias)
    if 0 < rows <= PLAIN_ROWS:
        return _plain(x, weight, bias, rows)
    if PLAIN_ROWS < rows <= DOT_ROWS and weight.numel() <= DOT_WEIGHT:
        return _dot(x, weight, bias, rows)
    return F.linear(x, weight, bias)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    outputs, inputs = weight.shape
    out = x.new_empty(*x.shape[:-1], outputs)
    block_outputs, block_inputs, warps = plain_tile(rows, outputs, inputs)
    _plain_kernel[(triton.cdiv(outputs, block_outputs),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        x.stride(0),
        outputs,
        inputs,
        HAS_BIAS=bias is not None,
        TWO=rows == 2,
        OUTPUTS=block_outputs,
        INPUTS=block_inputs,
        FOLD=8 if rows == 2 else 1,
        num_warps=warps,
        **overlapping(x),
    )
    return out


def plain_tile(rows: int, outputs: int, inputs: int) -> tuple[int, int, int]:
    """Returns the tile of one program: (outputs, inputs, warps).

    Measured over the shapes of five models: 2 KB of a weight's row at a time keeps reads long and leaves little of a
    tile outside. Weights with few outputs go into larger programs, so that all of them are on their way at once. Those
    of one row are all at once on the device, if four outputs in each allow it.
    """
    if inputs <= 1024:
        return 4, 512, 4 // rows
    if rows == 1:
        if 2 * WAVE < outputs <= 4 * WAVE:
            return 4, 512, 4
        return (2, 2048, 8) if outputs < 2048 else (2, 1024, 4)
    return (4, 2048, 8) if outputs < 4096 else (4, 1024, 4)


def _dot(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    outputs, inputs = weight.shape
    out = x.new_empty(*x.shape[:-1], outputs)
    parts = 8 if inputs >= 2048 else 2
    _dot_kernel[(triton.cdiv(outputs, 8),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        x.stride(0),
        rows,
        outputs,
        inputs,
        HAS_BIAS=bias is not None,
        ROWS=DOT_ROWS,
        OUTPUTS=8,
        INPUTS=512 // x.element_size(),
        PARTS=parts,
        num_warps=parts,
        num_stages=1,
        **overlapping(x),
    )
    return out


def _rows_are_dense(x: Tensor) -> bool:
    """True if x is [inputs], or [rows, inputs] with dense rows."""
    return x.dim() <= 2 and x.stride(-1) == 1
