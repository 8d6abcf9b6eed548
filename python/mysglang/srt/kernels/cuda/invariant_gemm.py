"""Matrix products in Triton whose rows do not depend on the rows beside them, bit for bit.

One kernel for any number of rows: tiles of a size that the weight alone decides, each of whose sums goes through the
inputs from first to last, in one program. A row's place in a tile does not matter to tensor cores; that tests hold to,
on the device itself. Few rows waste the tensor cores, which still wait for the weights.
"""

import triton
import triton.language as tl
from torch import Tensor

ROWS = 64
WIDE = 8192
"""Outputs from which on tiles of 128 of them occupy the device."""
NARROW = 2048
"""Outputs below which there are too few tiles of 64."""


# How many rows there are must not choose another compiled kernel either.
@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
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
):
    """A tile of the result. Tiles beside each other read the same rows of the weight."""
    row_tiles = tl.cdiv(rows, ROWS)
    tile = tl.program_id(0)
    row = ((tile % row_tiles) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    n = (tile // row_tiles) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    source = x + row[:, None] * x_stride + k[None, :]
    columns = weight + n.to(tl.int64)[None, :] * inputs + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, inputs, INPUTS):
        left = k < inputs - at
        values = tl.load(source + at, mask=(row < rows)[:, None] & left[None, :], other=0.0)
        weights = tl.load(columns + at, mask=(n < outputs)[None, :] & left[:, None], other=0.0)
        total = tl.dot(values, weights, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (n < outputs)[None, :]
    tl.store(out + row[:, None] * outputs + n[None, :], total, mask=inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `kernels.gemm.linear`."""
    outputs, inputs = weight.shape
    flat = x.reshape(-1, inputs)
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    weight = weight.contiguous()
    out = x.new_empty(len(flat), outputs)
    columns = tile_outputs(outputs)
    if len(flat):
        _linear_kernel[(triton.cdiv(len(flat), ROWS) * triton.cdiv(outputs, columns),)](
            flat,
            weight,
            weight if bias is None else bias,
            out,
            flat.stride(0),
            len(flat),
            outputs,
            inputs,
            HAS_BIAS=bias is not None,
            ROWS=ROWS,
            OUTPUTS=columns,
            INPUTS=128 // x.element_size(),
            num_warps=4,
            num_stages=4,
        )
    return out.view(*x.shape[:-1], outputs)


def tile_outputs(outputs: int) -> int:
    """Of one tile, for a weight with so many."""
    if outputs >= WIDE:
        return 128
    return 64 if outputs >= NARROW else 32
