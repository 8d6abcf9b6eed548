"""The sort of (row, expert) pairs by expert in one block: `csrc/experts/sort.cuh`, which describes the algorithm."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.attention import overlaps
from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

WARPS = 32
MOST_PAIRS = 256 * WARPS
MOST_EXPERTS = 32 * WARPS
MOST_BYTES = 96 << 10
"""Shared memory that a sort may take: less than any device has for a block."""

_LIBRARY = Library("experts/sort.cu", traits={"has_experts": True})


class Sort(Structure):
    """`SortedPairs` of sort.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("ids", "order", "block_experts", "used")),
        *((name, c_int) for name in ("pairs", "experts", "rows", "length")),
    )


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


def fits(pairs: int, experts: int, length: int) -> bool:
    """True if so many pairs can be sorted into a list of this length."""
    shared = 4 * (length + experts + WARPS) + 2 * WARPS * experts
    return pairs <= MOST_PAIRS and experts <= MOST_EXPERTS and shared <= MOST_BYTES


def sort_pairs(ids: Tensor, order: Tensor, block_experts: Tensor, used: Tensor, experts: int, rows: int) -> None:
    """Lists the pairs of each expert in blocks of `rows`.

    ids: int32, dense, the experts of all pairs. order: [length] int32, gets the numbers of pairs, and how many pairs
    there are where a block has none. block_experts: int32, gets the expert of each block; used: [1] int32, the number
    of blocks. Behind these blocks both are left as they are.
    """
    _launch()(
        byref(arguments(ids, order, block_experts, used, experts, rows)), overlaps(ids.device), current_stream(ids)
    )


def arguments(ids: Tensor, order: Tensor, block_experts: Tensor, used: Tensor, experts: int, rows: int) -> Sort:
    """Returns the kernel's arguments."""
    assert all(each.dtype is torch.int32 and each.is_contiguous() for each in (ids, order, block_experts, used))
    assert fits(ids.numel(), experts, len(order))
    pointers = [each.data_ptr() for each in (ids, order, block_experts, used)]
    return Sort(*pointers, ids.numel(), experts, rows, len(order))


@cache
def _launch() -> Launch:
    return _LIBRARY.function("mysgl_sort_pairs", POINTER(Sort), c_int, c_void_p)
