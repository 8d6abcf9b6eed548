"""Attention of decode steps: `csrc/attention/decode.cu`, which says how it works.

Reads keys and values through the page table, by a plan that says which block reads what; who makes the plan is the
caller's affair.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_long, c_void_p
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
ARCHS = ("90a", "100", "103")
"""Architectures with a copy engine that follows tensor maps, and 227 KB of shared memory for a block."""
LEAN_JOIN_UNITS = 2048
"""With at least this many query heads over all rows, one warp joins the partial results of each; with fewer, eight
warps do.
"""

_LIBRARIES = {
    (dim, dtype): Library(
        "attention/decode.cu",
        flags=(f"-DHEAD_DIM={dim}", *(("-DHALF",) if dtype is torch.float16 else ())),
        archs=ARCHS,
        traits={"head_dim": dim, "dtype": dtype},
    )
    for dim in HEAD_DIMS
    for dtype in DTYPES
}


class Plan(Protocol):
    """Which block of threads reads what, and room for partial results. The first four are int32."""

    @property
    def indptr(self) -> Tensor:
        """[blocks + 1] items of each block."""
        ...

    @property
    def items(self) -> Tensor:
        """[P, 12], aligned to 16 bytes: `Item` in the source."""
        ...

    @property
    def members(self) -> Tensor:
        """[M, 2], aligned to 8 bytes: batch row and first partial result of each row of a group."""
        ...

    @property
    def joins(self) -> Tensor:
        """[R, 2], aligned to 8 bytes: first partial result of each row, and their number."""
        ...

    @property
    def partial(self) -> Tensor:
        """[parts, num_heads, value_dim] float32. It is read only where it was written, as partial_lse is."""
        ...

    @property
    def partial_lse(self) -> Tensor:
        """[parts, num_heads] float32."""
        ...


def takes(head_dim: int, dtype: torch.dtype) -> bool:
    """True if the present device runs it for such heads. Compiles it if necessary."""
    library = _LIBRARIES.get((head_dim, dtype))
    return library is not None and library.available()


def planned_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    plan: Plan,
    page_size: int,
    scale: float,
    logit_cap: float,
    early: bool,
    lengths: Tensor | None = None,
    extends: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query token in each row. Returns [R, num_heads * head_dim] in the dtype of q.

    q: [R, num_heads * head_dim], rows at any distance. keys, values: [KV slots, num_kv_heads, head_dim], dense. table:
    [num_slots + 1, max_pages] int32. Scores are scaled, then capped softly by logit_cap unless that is 0.

    `early`: all keys but those of the step's new tokens were there before this step. With programmatic dependent launch
    they are read before the kernel ahead is done; plan, page table and lengths are in any case, so no launch that takes
    part in that may write these.

    lengths, extends: [B] int32, for a plan of rows whose length only the device knows. `Item` in the source has the
    batch row then. lengths: tokens of each with the new ones, at least 1. extends: the new ones, at most 16, which
    follow one another and are rows of q; each sees the keys up to its own. What the plan has behind a row's length is
    not read.

    sinks: [num_heads] float32, for each head the score of one more key that all rows see and whose value is zero.
    """
    rows, (_, kv_heads, dim) = len(q), keys.shape
    heads = q.shape[1] // dim
    assert q.dtype == keys.dtype == values.dtype and q.stride(1) == 1 and q.shape[1] == heads * dim
    assert keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape and heads % kv_heads == 0
    assert keys.data_ptr() % 16 == values.data_ptr() % 16 == 0
    assert q.data_ptr() % 4 == 0 and q.stride(0) % 2 == 0 and table.stride(1) == 1
    check_plan(plan, rows, heads, dim)
    assert (lengths is None) == (extends is None)
    for each in (lengths, extends):
        assert each is None or (each.dtype is torch.int32 and each.is_contiguous())
    assert sinks is None or (sinks.dtype is torch.float32 and sinks.shape == (heads,) and sinks.is_contiguous())
    out = torch.empty(rows, heads * dim, dtype=q.dtype, device=q.device)
    _launch(dim, q.dtype)(
        q.data_ptr(),
        q.stride(0),
        keys.data_ptr(),
        values.data_ptr(),
        len(keys),
        table.data_ptr(),
        table.stride(0),
        plan.indptr.data_ptr(),
        plan.items.data_ptr(),
        plan.members.data_ptr(),
        plan.joins.data_ptr(),
        None if lengths is None else lengths.data_ptr(),
        None if extends is None else extends.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        plan.partial.data_ptr(),
        plan.partial_lse.data_ptr(),
        len(plan.indptr) - 1,
        rows,
        kv_heads,
        heads // kv_heads,
        page_size,
        scale,
        logit_cap,
        overlaps(q.device),
        early,
        rows * heads >= LEAN_JOIN_UNITS,
        current_stream(q),
    )
    return out


def check_plan(plan: Plan, rows: int, heads: int, value_dim: int) -> None:
    """Asserts that the plan is one for so many rows."""
    assert plan.items.data_ptr() % 16 == plan.members.data_ptr() % 8 == plan.joins.data_ptr() % 8 == 0
    assert plan.partial.shape[1:] == (heads, value_dim) and plan.partial_lse.shape == plan.partial.shape[:2]
    assert len(plan.joins) >= rows


@cache
def _launch(head_dim: int, dtype: torch.dtype) -> Launch:
    pointers, ints = [c_void_p], [c_int]
    pools = [*2 * pointers, c_long, *pointers, c_long]
    types = [c_void_p, c_long, *pools, *10 * pointers, *5 * ints, c_float, c_float, *3 * ints, c_void_p]
    return _LIBRARIES[head_dim, dtype].function("mysgl_decode_attention", *types)


@cache
def overlaps(device: torch.device) -> bool:
    """True if the device can start a kernel while the one before it finishes."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
