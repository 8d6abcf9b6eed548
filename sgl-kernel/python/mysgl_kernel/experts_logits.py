"""The logits of a router for some hundred rows: `csrc/experts/logits.cuh`, which describes the algorithm."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int, c_longlong, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

TILES = (16, 16), (16, 32), (32, 32)
"""Rows of a block, and experts, by the number of the tile."""
PIECE = 32
"""Inputs that a warp multiplies together: there are a multiple of them."""
MOST_BLOCKS = 132
"""One for each multiprocessor of an H200. For more of the largest tile, a library's product is as fast."""

_LIBRARY = Library("experts/logits.cu", archs=("90a",), traits={"dtype": torch.bfloat16, "has_experts": True})


class Logits(Structure):
    """`Logits` of logits.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "bias", "out")),
        ("x_stride", c_longlong),
        *((name, c_int) for name in ("rows", "experts", "inputs", "wide")),
    )


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


def best_tile(rows: int, experts: int) -> int | None:
    """Returns the number of the smallest tile of which each multiprocessor has one at most; None: there is none."""
    counts = (-(-rows // high) * -(-experts // wide) for high, wide in TILES)
    return next((tile for tile, count in enumerate(counts) if count <= MOST_BLOCKS), None)


def fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if the kernel takes x [rows, inputs], weight [experts, inputs] and bias [experts], and is meant for so many
    rows.
    """
    short = all(each.dtype is torch.bfloat16 for each in (x, weight, bias) if each is not None)
    dense = weight.is_contiguous() and x.stride(1) == 1
    whole = x.shape[1] % PIECE == 0 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == weight.data_ptr() % 16 == 0
    return short and dense and whole and len(x) > 0 and best_tile(len(x), len(weight)) is not None


def router_logits(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Fills out [rows, experts], bfloat16 or float32, with x weightᵀ + bias, summed in float32. `fits` holds for the
    arguments.
    """
    _launch()(byref(arguments(x, weight, bias, out)), best_tile(*out.shape), current_stream(x))


def arguments(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Logits:
    """Returns the kernel's arguments."""
    (rows, inputs), experts = x.shape, len(weight)
    assert weight.shape == (experts, inputs) and out.shape == (rows, experts) and out.is_contiguous()
    assert out.dtype in (torch.bfloat16, torch.float32)
    pointers = [None if each is None else each.data_ptr() for each in (x, weight, bias, out)]
    return Logits(*pointers, x.stride(0), rows, experts, inputs, out.dtype is torch.float32)


@cache
def _launch() -> Launch:
    return _LIBRARY.function("mysgl_router_logits", POINTER(Logits), c_int, c_void_p)
