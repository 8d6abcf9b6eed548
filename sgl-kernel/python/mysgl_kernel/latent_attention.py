"""Attention of decode steps over latent rows: `csrc/attention/latent.cu`, which says how it works.

Reads rows through the page table, by a plan that says which block reads what; who makes the plan is the caller's
affair.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_long, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.attention import DTYPES, LEAN_JOIN_UNITS, Plan, check_plan, overlaps
from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

ARCHS = ("90a",)
"""Architectures whose warps move registers between them."""
SIZES = 576, 512
"""Numbers of a row, and of its value: those of DeepSeek's models and of their kin."""
SLICES = 4
"""Parts of a query head's result that are joined each by itself."""

_LIBRARIES = {
    dtype: Library(
        "attention/latent.cu",
        flags=(
            f"-DHEAD_DIM={SIZES[1]}",
            f"-DTURNED={SIZES[0] - SIZES[1]}",
            *(("-DHALF",) if dtype is torch.float16 else ()),
        ),
        archs=ARCHS,
        traits={"head_dim": SIZES[0], "dtype": dtype},
    )
    for dtype in DTYPES
}


def takes(dtype: torch.dtype) -> bool:
    """True if the present device runs it for rows of SIZES. Compiles it if necessary."""
    library = _LIBRARIES.get(dtype)
    return library is not None and library.available()


def planned_latent_decode(
    q: Tensor,
    rows: Tensor,
    table: Tensor,
    plan: Plan,
    page_size: int,
    scale: float,
    early: bool,
) -> Tensor:
    """One query token in each row. Returns [R, num_heads * 512] in the dtype of q.

    q: [R, num_heads * 576], rows at distances of multiples of 64. rows: [KV slots, 1, 576], dense. A team of the plan
    is a number of tiles of 16 queries, 1 or 2. Everything else is as of `attention.planned_decode`.
    """
    size, dim = SIZES
    count, heads = len(q), q.shape[1] // size
    assert rows.shape[1:] == (1, size) and rows.is_contiguous() and q.dtype == rows.dtype
    assert q.shape[1] == heads * size and q.stride(1) == 1 and q.stride(0) % 64 == 0 and table.stride(1) == 1
    assert q.data_ptr() % 16 == rows.data_ptr() % 16 == 0
    check_plan(plan, count, heads, dim)
    out = torch.empty(count, heads * dim, dtype=q.dtype, device=q.device)
    _launch(q.dtype)(
        q.data_ptr(),
        q.stride(0),
        rows.data_ptr(),
        len(rows),
        table.data_ptr(),
        table.stride(0),
        plan.indptr.data_ptr(),
        plan.items.data_ptr(),
        plan.members.data_ptr(),
        plan.joins.data_ptr(),
        out.data_ptr(),
        plan.partial.data_ptr(),
        plan.partial_lse.data_ptr(),
        len(plan.indptr) - 1,
        count,
        heads,
        page_size,
        scale,
        overlaps(q.device),
        early,
        count * heads * SLICES >= LEAN_JOIN_UNITS,
        current_stream(q),
    )
    return out


@cache
def _launch(dtype: torch.dtype) -> Launch:
    pointers = [c_void_p]
    types = [
        *pointers,
        c_long,
        *pointers,
        c_long,
        *pointers,
        c_long,
        *7 * pointers,
        *4 * [c_int],
        c_float,
        *3 * [c_int],
        *pointers,
    ]
    return _LIBRARIES[dtype].function("mysgl_latent_decode_attention", *types)
