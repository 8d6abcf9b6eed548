"""Products of bfloat16 rows with packed weights: `csrc/cpu/gemm.cpp`, which says how it works."""

from __future__ import annotations

import mmap
from contextlib import suppress
from ctypes import c_bool, c_int, c_long, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.cpu.library import CpuLibrary

COLUMNS = 32
"""Outputs of a panel, of which a weight must have whole ones."""
HUGE_PAGE = 1 << 21
"""Bytes."""
ACTIVATIONS = {"silu": 1, "gelu_tanh": 2, "swigluoai": 3}

_LIBRARY = CpuLibrary("cpu/gemm.cpp")


available = _LIBRARY.available
"""True if the kernels can run. Where the processor has AMX, they use it for many rows."""


def packs(weight: Tensor) -> bool:
    """True if `pack` accepts a weight of this shape and dtype."""
    return (
        weight.dtype in (torch.bfloat16, torch.int8)
        and weight.dim() == 2
        and weight.shape[0] % COLUMNS == 0
        and weight.shape[1] % 2 == 0
        and weight.numel() > 0
    )


def is_packed(weight: Tensor) -> bool:
    """True if `pack` made the weight."""
    return weight.dim() == 4


def pack(weight: Tensor) -> Tensor:
    """[output, input], bfloat16 or int8 -> [output / 32, input / 2, 32, 2]: a copy in the order of reading."""
    outputs, inputs = weight.shape
    packed = huge_empty(weight.nbytes).view(weight.dtype).view(outputs // COLUMNS, inputs // 2, COLUMNS, 2)
    pack_into(packed, weight)
    return packed


def pack_into(packed: Tensor, weight: Tensor) -> None:
    """`pack` to memory that is there: dense, of the packed shape."""
    weight = weight.detach().contiguous()
    _pack()(weight.data_ptr(), packed.data_ptr(), *weight.shape, weight.itemsize)


def huge_empty(nbytes: int) -> Tensor:
    """[nbytes] uint8, uninitialised, on huge pages where there are such and enough is wanted: a processor that streams
    memory stops at the end of each page.
    """
    if nbytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a system that has none
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % HUGE_PAGE :][:nbytes]


def unpack(packed: Tensor) -> Tensor:
    """Returns the opposite of `pack`."""
    panels, pairs = packed.shape[:2]
    return packed.permute(0, 2, 1, 3).reshape(panels * COLUMNS, pairs * 2)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    scales: Tensor | None = None,
    activation: str | None = None,
    alike: bool = False,
) -> Tensor:
    """[N, input] -> [N, output], or [N, output / 2] with an activation: act(first half) * second half.

    x: bfloat16, rows at any distance. weight: packed; of int8, `scales` [output] float32 are what the columns are
    multiplied by. bias: [output] bfloat16. With an activation, half the outputs must be whole panels. alike: a row gets
    the same bits among any number of rows; else AMX, which sums in another order, multiplies many rows.
    """
    panels, pairs, _, _ = weight.shape
    outputs, rows = panels * COLUMNS, x.shape[0]
    out = x.new_empty(rows, outputs if activation is None else outputs // 2)
    where = (out.data_ptr(), out.shape[1], x.data_ptr(), x.stride(0), rows, weight.data_ptr())
    bias_at = None if bias is None else bias.data_ptr()
    how = (bias_at, outputs, pairs * 2, 0 if activation is None else ACTIVATIONS[activation], alike)
    if scales is None:
        _linear()(*where, *how)
    else:
        _linear_int8()(*where, scales.data_ptr(), *how)
    return out


@cache
def _pack() -> Launch:
    return _LIBRARY.function("mysgl_pack", c_void_p, c_void_p, c_long, c_long, c_long)


_WHERE = (c_void_p, c_long, c_void_p, c_long, c_long, c_void_p)
_HOW = (c_void_p, c_long, c_long, c_int, c_bool)


@cache
def _linear() -> Launch:
    return _LIBRARY.function("mysgl_linear", *_WHERE, *_HOW)


@cache
def _linear_int8() -> Launch:
    return _LIBRARY.function("mysgl_linear_int8", *_WHERE, c_void_p, *_HOW)
