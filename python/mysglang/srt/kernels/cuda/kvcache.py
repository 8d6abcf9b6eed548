"""Paged keys and values in Triton: storing a step's tokens, and listing the pages of its rows."""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping


@triton.jit
def _store_kernel(
    k, v, k_cache, v_cache, locations, k_stride, v_stride, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    to = tl.load(locations + token).to(tl.int64) * width + columns
    tl.store(k_cache + to, tl.load(k + token * k_stride + columns, mask=inside), mask=inside)
    tl.store(v_cache + to, tl.load(v + token * v_stride + columns, mask=inside), mask=inside)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, locations: Tensor) -> None:
    """As `kernels.kvcache.store_kv`."""
    width = k_cache.shape[1] * k_cache.shape[2]
    block = triton.next_power_of_2(width)
    _store_kernel[(len(locations),)](
        k,
        v,
        k_cache,
        v_cache,
        locations,
        k.stride(0),
        v.stride(0),
        width,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
        **overlapping(k),
    )


@triton.jit
def _copy_pages_kernel(from_pages, to_pages, source, target, source_stride, target_stride, width, BLOCK: tl.constexpr):
    pair = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    begin = tl.load(from_pages + pair).to(tl.int64) * source_stride
    to = tl.load(to_pages + pair).to(tl.int64) * target_stride
    tl.store(target + to + columns, tl.load(source + begin + columns, mask=inside), mask=inside)


def copy_pages(from_pages: Tensor, to_pages: Tensor, source: Tensor, target: Tensor) -> None:
    """As `kernels.kvcache.copy_pages`. The device reads and writes pinned memory of the host by itself."""
    width = source[0].numel()
    block = min(triton.next_power_of_2(width), 2048)
    _copy_pages_kernel[(len(from_pages), triton.cdiv(width, block))](
        from_pages, to_pages, source, target, source.stride(0), target.stride(0), width, BLOCK=block, num_warps=4
    )


PARTS = 8
"""Programs that share one row's pages."""


@triton.jit
def _list_pages_kernel(
    table,
    slots,
    seq_lens,
    indptr,
    indices,
    last_page_lens,
    table_stride,
    rows,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    others = tl.arange(0, ROWS)
    counts = (tl.load(seq_lens + others, mask=others < rows, other=0) + PAGE - 1) // PAGE
    begin = tl.sum(tl.where(others < row, counts, 0))
    seq_len = tl.load(seq_lens + row)
    count = (seq_len + PAGE - 1) // PAGE
    if part == 0:
        if row == 0:
            tl.store(indptr, 0)
        tl.store(indptr + row + 1, begin + count)
        tl.store(last_page_lens + row, seq_len - (count - 1) * PAGE)
    source = table + tl.load(slots + row) * table_stride
    for first in range(part * BLOCK, count, PARTS * BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < count
        tl.store(indices + begin + columns, tl.load(source + columns, mask=inside), mask=inside)


def list_pages(
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    page_size: int,
    indptr: Tensor,
    indices: Tensor,
    last_page_lens: Tensor,
) -> None:
    """The pages of each row, one row after another, as FlashInfer reads them. Everything stays on the device.

    table: [num_slots + 1, max_pages] int32; slots: [R] int64; seq_lens: [R] int32, at least 1.
    Fills indptr [R + 1], indices [at least the sum of the rows' pages] and last_page_lens [R], int32 each.
    """
    rows = len(slots)
    _list_pages_kernel[(rows, PARTS)](
        table,
        slots,
        seq_lens,
        indptr,
        indices,
        last_page_lens,
        table.stride(0),
        rows,
        PAGE=page_size,
        PARTS=PARTS,
        ROWS=triton.next_power_of_2(rows),
        BLOCK=512,
        num_warps=4,
    )
