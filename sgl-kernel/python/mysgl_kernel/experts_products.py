"""Products of blocks of rows with their experts, for prompts: `csrc/experts/products.cuh`, which describes the
algorithm.
"""

from __future__ import annotations

import math
from ctypes import POINTER, Structure, byref, c_float, c_int, c_long, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mysgl_kernel import gemm
from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream, multiprocessors

ROWS = 192
"""Pairs of a block."""
WIDTH = 8
"""Widths of rows are multiples of this."""
BLOCK_GROUP = 16
"""Blocks that go through all tiles together."""
GATES = {name: (*gate, math.inf, 0.0) for name, gate in gemm.GATES.items()} | {"swigluoai": (1.702, 0.0, 7.0, 1.0)}
"""`BoundedGate` of products.cuh by the activation's name."""

_LIBRARY = Library("experts/products.cu", archs=("90a",), traits={"dtype": torch.bfloat16, "has_experts": True})


class Gate(Structure):
    """`BoundedGate` of products.cuh."""

    _fields_ = tuple((name, c_float) for name in ("a", "b", "limit", "added"))


class Product(Structure):
    """`Product` of products.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "bias", "out", "order", "block_experts", "used")),
        ("x_stride", c_long),
        *((name, c_int) for name in ("pairs", "shared", "width", "inputs", "block_group")),
        ("taken", c_void_p),
        ("gate", Gate),
    )


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


class Blocks(NamedTuple):
    """Pairs by expert in blocks of ROWS, as `experts_sort` lists them. All tensors: int32, dense."""

    order: Tensor
    block_experts: Tensor
    used: Tensor
    taken: Tensor
    """[1], 0, in which one product counts."""


def multiply_blocks(
    x: Tensor, weights: Tensor, bias: Tensor | None, out: Tensor, blocks: Blocks, shared: int, gate: str | None
) -> None:
    """Computes out[pair] = weights[expert] x[pair / shared] + bias[expert] for all pairs of the blocks; with a gate (of
    GATES), that of the first half of it and the second.

    x: [rows, inputs]; weights: [experts, width or 2 * width, inputs], dense; bias: [experts, width or 2 * width]; out:
    [pairs, width], dense; all bfloat16. Both widths are multiples of WIDTH, and so is the distance of rows of x.
    """
    _launch()(
        byref(arguments(x, bias, out, blocks, shared, gate)),
        weights.data_ptr(),
        weights.shape[0] * weights.shape[1],
        gate is not None,
        multiprocessors(x.device),
        current_stream(x),
    )


def arguments(x: Tensor, bias: Tensor | None, out: Tensor, blocks: Blocks, shared: int, gate: str | None) -> Product:
    """Returns the kernel's arguments but the weights."""
    assert all(each.dtype is torch.bfloat16 for each in (x, out)) and out.is_contiguous() and x.stride(1) == 1
    assert x.stride(0) % WIDTH == x.shape[1] % WIDTH == out.shape[1] % WIDTH == 0
    assert all(each.dtype is torch.int32 and each.is_contiguous() for each in blocks)
    order, block_experts, used, taken = (each.data_ptr() for each in blocks)
    pointers = x.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(), order, block_experts, used
    sizes = len(out), shared, out.shape[1], x.shape[1], BLOCK_GROUP
    return Product(*pointers, x.stride(0), *sizes, taken, Gate(*GATES[gate or "silu"]))


@cache
def _launch() -> Launch:
    return _LIBRARY.function("mysgl_multiply_blocks", POINTER(Product), c_void_p, c_int, c_int, c_int, c_void_p)
