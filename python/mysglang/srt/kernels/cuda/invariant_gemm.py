"""Matrix products whose rows do not depend on the rows beside them, bit for bit.

Each sum goes through the inputs from first to last, sixteen at a time, in the tensor cores of one block: then neither
how many rows there are nor how the result is cut into tiles should matter to it. There are several ways to do that,
each quick for some shapes: Hopper's kernel for up to 256 rows (`wave_gemm`), never splitting the depth, cuBLAS for many
rows, and a Triton kernel with tiles of several sizes. What tensor cores add inside an instruction is not written down
anywhere, so the device is asked once whether all ways give the same bits. Those that do not are left out, down to
Triton's with a tile that the weight alone decides.

cuBLAS chooses among its kernels by the shape, and not all of them add from first to last. So it gets blocks of a few
fixed numbers of rows only, and is asked for each of them and each shape of a weight.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.op import kernel_module

logger = logging.getLogger(__name__)

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [rows, inputs], weight [outputs, inputs] and bias -> [rows, outputs]."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of the result, computed by one program."""

    rows: int
    outputs: int
    warps: int


WIDE = 8192
"""Number of outputs from which tiles of 128 outputs occupy the device, whatever the rows."""
NARROW = 2048
"""Outputs below which there are too few tiles of 64."""
ROWS = 64
"""Rows of tiles that depend on the weight alone."""
LARGE_TILES = (Tile(128, 256, 8), Tile(128, 128, 8))
"""Tiles for many rows, the largest first: a program with a larger tile multiplies more with each value that it
reads.
"""
ENOUGH_PROGRAMS = 120
"""A tile should leave so many, to occupy a device."""

LIBRARY_ROWS = (4096, 1024)
"""Rows of the blocks that cuBLAS is given, the largest first; what is left of a step goes the other ways."""
COMPARED_ROWS = 256
"""Rows of a block that are compared at a time, so that the comparison takes little memory."""

TRIED_WEIGHTS = ((1024, 3072), (4096, 1024), (9216, 2056))
TRIED_ROWS = (1, 7, 16, 65, 130, 200, 256)
"""Numbers of rows with which the device is tested."""


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
    """Computes a tile of the result. Tiles beside each other read the same rows of the weight."""
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
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    flat = x.reshape(-1, weight.shape[1])
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    weight = weight.contiguous()
    ways = _ways(x.device, x.dtype)
    return _product(flat, weight, bias, ways).view(*x.shape[:-1], len(weight))


@dataclass(frozen=True, slots=True)
class Ways:
    """Which faster kernels give the same bits as the reference kernel on this device."""

    waves: bool
    """True: the kernel for Hopper."""
    large_tiles: bool


FEWEST = Ways(waves=False, large_tiles=False)


@cache
def _ways(device: torch.device, dtype: torch.dtype) -> Ways:
    """Returns the methods that give the same bits on this device."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return FEWEST
    assert not torch.cuda.is_current_stream_capturing(), "products are tried out before anything is captured"
    found = Ways(
        waves=dtype is torch.bfloat16 and _has_waves() and _alike(_waves, device, dtype),
        large_tiles=all(_alike(_with_tile(tile), device, dtype) for tile in LARGE_TILES),
    )
    logger.info("Deterministic matrix products in %s use these kernels: %s.", dtype, found)
    return found


def _alike(product: Product, device: torch.device, dtype: torch.dtype) -> bool:
    """Returns True if the product gives the same bits as the fixed tiles, for few rows and many."""
    draw = torch.Generator(device).manual_seed(16)
    for outputs, inputs in TRIED_WEIGHTS:
        weight = torch.randn(outputs, inputs, device=device, generator=draw).mul_(inputs**-0.5).to(dtype)
        bias = torch.randn(outputs, device=device, generator=draw).to(dtype)
        x = torch.randn(TRIED_ROWS[-1], inputs, device=device, generator=draw).to(dtype)
        expected = _with_tile(fixed_tile(outputs))(x, weight, bias)
        for rows in TRIED_ROWS:
            if not torch.equal(product(x[:rows], weight, bias), expected[:rows]):
                return False
    return True


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, ways: Ways) -> Tensor:
    blocks = library_blocks(
        len(x), [rows for rows in LIBRARY_ROWS if len(x) >= rows and _agrees(x, weight, bias, rows)]
    )
    if not blocks:
        return _of_some_rows(x, weight, bias, ways)
    out, begin = x.new_empty(len(x), len(weight)), 0
    for rows in blocks:
        _by_library(x[begin : begin + rows], weight, bias, out[begin : begin + rows])
        begin += rows
    if begin < len(x):
        out[begin:] = _of_some_rows(x[begin:], weight, bias, ways)
    return out


def library_blocks(rows: int, sizes: Sequence[int]) -> list[int]:
    """Cuts `rows` into blocks of these descending sizes. What is left is smaller than the last size."""
    blocks = []
    for size in sizes:
        count, rows = divmod(rows, size)
        blocks += [size] * count
    return blocks


_agreed: dict[tuple[object, ...], bool] = {}


def _agrees(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> bool:
    """True if cuBLAS gives the bits of the other methods for that many rows of x and a weight of this shape."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    if not (x.is_cuda and half and x.is_contiguous()) or x.data_ptr() % 16 or weight.data_ptr() % 16:
        return False
    key = (x.device, x.dtype, weight.shape, bias is not None, rows)
    if key not in _agreed:
        if torch.cuda.is_current_stream_capturing():
            return False
        drawn = torch.randn(rows, x.shape[1], device=x.device).to(x.dtype)
        found = _by_library(drawn, weight, bias, drawn.new_empty(rows, len(weight)))
        if not order_matters(found):
            return False  # and ask again when there are other weights
        expected = _with_tile(fixed_tile(len(weight)))
        _agreed[key] = all(
            torch.equal(part, expected(drawn[place * COMPARED_ROWS :][:COMPARED_ROWS], weight, bias))
            for place, part in enumerate(found.split(COMPARED_ROWS))
        )
        logger.debug("Deterministic matrix products by cuBLAS, %s: %s.", key, _agreed[key])
    return _agreed[key]


def order_matters(found: Tensor) -> bool:
    """Returns True if another order of the sums would change this product; zeros and values that are not finite
    hide it.
    """
    return bool(found.isfinite().all()) and int(found.count_nonzero()) > found.numel() // 2


def _by_library(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Computes x @ weightᵀ + bias with cuBLAS. The result is written to `out`, which is returned."""
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


def _of_some_rows(x: Tensor, weight: Tensor, bias: Tensor | None, ways: Ways) -> Tensor:
    if ways.waves and (found := _by_waves(x, weight, bias)) is not None:
        return found
    tile = fixed_tile(len(weight))
    if ways.large_tiles:
        tile = best_tile(len(x), len(weight))
    return _with_tile(tile)(x, weight, bias)


def fixed_tile(outputs: int) -> Tile:
    """Returns the tile for a weight with `outputs` rows. It must not depend on the batch, or the bits would."""
    if outputs >= WIDE:
        return Tile(ROWS, 128, 4)
    return Tile(ROWS, 64 if outputs >= NARROW else 32, 4)


def best_tile(rows: int, outputs: int) -> Tile:
    """Returns the largest tile that leaves enough programs for the device."""
    for tile in LARGE_TILES:
        if triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs) >= ENOUGH_PROGRAMS:
            return tile
    return fixed_tile(outputs)


def _with_tile(tile: Tile) -> Product:
    """Returns the product by the Triton kernel with this tile."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs, inputs = weight.shape
        out = x.new_empty(len(x), outputs)
        if len(x):
            _linear_kernel[(triton.cdiv(len(x), tile.rows) * triton.cdiv(outputs, tile.outputs),)](
                x,
                weight,
                weight if bias is None else bias,
                out,
                x.stride(0),
                len(x),
                outputs,
                inputs,
                HAS_BIAS=bias is not None,
                ROWS=tile.rows,
                OUTPUTS=tile.outputs,
                INPUTS=128 // x.element_size(),
                num_warps=tile.warps,
                num_stages=4 if tile.warps == 4 else 3,
            )
        return out

    return product


def _has_waves() -> bool:
    return kernel_module("gemm") is not None


def _by_waves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Returns the product by Hopper's kernel; None if it does not support the shape, or the copy engine not the
    addresses.
    """
    waves = importlib.import_module("mysgl_kernel.gemm")
    aligned = x.stride(0) % 8 == 0 and x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    plan = waves.whole_plan(len(x), *weight.shape) if aligned and len(x) else None
    return None if plan is None else waves.linear(x, weight, bias, plan)


def _waves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the product by Hopper's kernel, for shapes that it supports."""
    found = _by_waves(x, weight, bias)
    assert found is not None
    return found
