"""Matrix products whose rows do not depend on the rows beside them, bit for bit.

Each sum goes through the inputs from first to last, sixteen at a time, in the tensor cores of one block: then neither
how many rows there are nor how the result is cut into tiles should matter to it. There are several ways to do that,
each quick for some shapes: Hopper's kernel for up to 256 rows (`wave_gemm`), never splitting the depth, and a Triton
kernel with tiles of several sizes. What tensor cores add inside an instruction is not written down anywhere, so the
device is asked once whether all ways give the same bits. Those that do not are left out, down to Triton's with a tile
that the weight alone decides.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

logger = logging.getLogger(__name__)

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x [rows, inputs], weight [outputs, inputs] and bias -> [rows, outputs]."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Of the result, of one program."""

    rows: int
    outputs: int
    warps: int


WIDE = 8192
"""Outputs from which on tiles of 128 of them occupy the device, whatever the rows."""
NARROW = 2048
"""Outputs below which there are too few tiles of 64."""
ROWS = 64
"""Of tiles that the weight alone decides."""
LARGE_TILES = (Tile(128, 256, 8), Tile(128, 128, 8))
"""For many rows, the largest first: the more a program multiplies with what it reads, the better."""
ENOUGH_PROGRAMS = 120
"""A tile should leave so many, to occupy a device."""

TRIED_WEIGHTS = ((1024, 3072), (4096, 1024), (9216, 2056))
TRIED_ROWS = (1, 7, 16, 65, 130, 200, 256)
"""On which the device is asked."""


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
    flat = x.reshape(-1, weight.shape[1])
    if flat.stride(1) != 1:
        flat = flat.contiguous()
    weight = weight.contiguous()
    ways = _ways(x.device, x.dtype)
    return _product(flat, weight, bias, ways).view(*x.shape[:-1], len(weight))


@dataclass(frozen=True, slots=True)
class Ways:
    """Which may stand in for each other."""

    waves: bool
    """Hopper's kernel."""
    large_tiles: bool


FEWEST = Ways(waves=False, large_tiles=False)


@cache
def _ways(device: torch.device, dtype: torch.dtype) -> Ways:
    """Those that give the same bits on this device."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return FEWEST
    assert not torch.cuda.is_current_stream_capturing(), "products are tried out before anything is captured"
    found = Ways(
        waves=dtype is torch.bfloat16 and _has_waves() and _alike(_waves, device, dtype),
        large_tiles=all(_alike(_with_tile(tile), device, dtype) for tile in LARGE_TILES),
    )
    logger.info("Deterministic products in %s: %s.", dtype, found)
    return found


def _alike(product: Product, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether it gives the bits of the tiles that the weight alone decides, for few rows and many."""
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
    if ways.waves and (found := _by_waves(x, weight, bias)) is not None:
        return found
    tile = fixed_tile(len(weight))
    if ways.large_tiles:
        tile = best_tile(len(x), len(weight))
    return _with_tile(tile)(x, weight, bias)


def fixed_tile(outputs: int) -> Tile:
    """By the weight alone."""
    if outputs >= WIDE:
        return Tile(ROWS, 128, 4)
    return Tile(ROWS, 64 if outputs >= NARROW else 32, 4)


def best_tile(rows: int, outputs: int) -> Tile:
    """The largest that leaves enough programs."""
    for tile in LARGE_TILES:
        if triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs) >= ENOUGH_PROGRAMS:
            return tile
    return fixed_tile(outputs)


def _with_tile(tile: Tile) -> Product:
    """By the Triton kernel."""

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
    if importlib.util.find_spec("mysgl_kernel") is None:
        return False
    return bool(importlib.import_module("mysgl_kernel.gemm").available())


def _by_waves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """By Hopper's kernel; None where it does not take the shape, or the copy engine not the addresses."""
    waves = importlib.import_module("mysgl_kernel.gemm")
    aligned = x.stride(0) % 8 == 0 and x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    plan = waves.whole_plan(len(x), *weight.shape) if aligned and len(x) else None
    return None if plan is None else waves.linear(x, weight, bias, plan)


def _waves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same, for shapes that it takes."""
    found = _by_waves(x, weight, bias)
    assert found is not None
    return found
