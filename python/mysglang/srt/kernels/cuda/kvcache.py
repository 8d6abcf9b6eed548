"""Paged keys and values in Triton: storing a step's tokens, and listing the pages of its rows."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.fp8 import to_stored
from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.fp8 import bits, format_of
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales


@triton.jit
def _store_kernel(
    k,
    v,
    k_cache,
    v_cache,
    locations,
    k_stride,
    v_stride,
    width,
    k_inverse,
    v_inverse,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    to = tl.load(locations + token).to(tl.int64) * width + columns
    keys = tl.load(k + token * k_stride + columns, mask=inside)
    values = tl.load(v + token * v_stride + columns, mask=inside)
    tl.store(k_cache + to, to_stored(keys, k_inverse, FORMAT), mask=inside)
    tl.store(v_cache + to, to_stored(values, v_inverse, FORMAT), mask=inside)


def store_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, locations: Tensor, scales: KvScales = UNSCALED
) -> None:
    """Implements the op `store_kv`. `kernels/kvcache.py` describes its arguments and result."""
    width = k_cache.shape[1] * k_cache.shape[2]
    block = triton.next_power_of_2(width)
    _store_kernel[(len(locations),)](
        k,
        v,
        bits(k_cache),
        bits(v_cache),
        locations,
        k.stride(0),
        v.stride(0),
        width,
        1.0 / scales.key,
        1.0 / scales.value,
        FORMAT=format_of(k_cache.dtype),
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
        **overlapping(k),
    )


@triton.jit
def _copy_pages_kernel(
    from_pages,
    to_pages,
    addresses,
    tensors,
    source_stride,
    target_stride,
    width,
    WORD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pair, tensor = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = tl.load(addresses + tensor).to(tl.pointer_type(WORD))
    target = tl.load(addresses + tensors + tensor).to(tl.pointer_type(WORD))
    begin = tl.load(from_pages + pair).to(tl.int64) * source_stride
    to = tl.load(to_pages + pair).to(tl.int64) * target_stride
    tl.store(target + to + columns, tl.load(source + begin + columns, mask=inside), mask=inside)


WORD_BYTES = 8


def copy_pages(from_pages: Tensor, to_pages: Tensor, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """See `kernels.kvcache.copy_pages`. One launch is enough if all buffers are alike, as in the layers of most models.

    The device reads and writes pinned memory of the host by itself.
    """
    alike = {(source.stride(0), target.stride(0)) for source, target in zip(sources, targets, strict=True)}
    if len(alike) > 1 or len({source.shape[1:] for source in sources}) > 1:
        for source, target in zip(sources, targets, strict=True):
            copy_pages(from_pages, to_pages, [source], [target])
        return
    where = tuple(tensor.data_ptr() for tensor in (*sources, *targets))
    sizes = [size * sources[0].itemsize for size in (sources[0].stride(0), targets[0].stride(0), sources[0][0].numel())]
    # By words of 8 bytes where every address and distance allows it: a program then moves up to 8 times as much.
    word = WORD_BYTES if not any(number % WORD_BYTES for number in (*where, *sizes)) else 1
    width = sizes[2] // word
    block = min(triton.next_power_of_2(width), 1024)
    _copy_pages_kernel[(len(from_pages), len(sources), triton.cdiv(width, block))](
        from_pages,
        to_pages,
        _addresses(where, from_pages.device),
        len(sources),
        sizes[0] // word,
        sizes[1] // word,
        width,
        WORD=tl.int64 if word == WORD_BYTES else tl.int8,
        BLOCK=block,
        num_warps=4,
    )


@lru_cache(maxsize=1024)
def _addresses(where: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns the addresses of the tensors, on the device. The same ones recur until memory is released in between."""
    return torch.tensor(where, dtype=torch.int64, device=device)


PARTS = 8
"""Programs that share one row's pages."""


@triton.jit
def _list_pages_kernel(
    table,
    slots,
    seq_lens,
    extend_lens,
    indptr,
    indices,
    last_page_lens,
    table_stride,
    window,
    HAS_WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    # Each program adds up the pages of the rows before its own, rather than wait for one that does it for all. Their
    # number is no constant: a step of another number of rows must not have to compile another kernel.
    begin = 0
    for first in range(0, row, BLOCK):
        others = first + tl.arange(0, BLOCK)
        begin += tl.sum((tl.load(seq_lens + others, mask=others < row, other=0) + PAGE - 1) // PAGE)
    seq_len = tl.load(seq_lens + row)
    count = (seq_len + PAGE - 1) // PAGE
    if part == 0:
        if row == 0:
            tl.store(indptr, 0)
        tl.store(indptr + row + 1, begin + count)
        tl.store(last_page_lens + row, seq_len - (count - 1) * PAGE)
    source = table + tl.load(slots + row) * table_stride
    # Page 0 stands for pages that no new token sees; their numbers may be another row's by now.
    seen = 0
    if HAS_WINDOW:
        seen = tl.maximum(seq_len - tl.load(extend_lens + row) + 1 - window, 0) // PAGE
    for first in range(part * BLOCK, count, PARTS * BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < count
        pages = tl.load(source + columns, mask=inside & (columns >= seen), other=0)
        tl.store(indices + begin + columns, pages, mask=inside)


def list_pages(
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    page_size: int,
    indptr: Tensor,
    indices: Tensor,
    last_page_lens: Tensor,
    *,
    extend_lens: Tensor | None = None,
    window: int | None = None,
) -> None:
    """Lists the pages of each row, one row after another, as FlashInfer reads them. Everything stays on the device.

    table: [num_slots + 1, max_pages] int32; slots: [R] int64; seq_lens: [R] int32, at least 1. With a
    window, page 0 stands for pages that none of the row's new tokens (extend_lens [R] int32) sees: such a page may
    belong to another row by now. Fills indptr [R + 1], indices [at least the sum of the rows' pages] and
    last_page_lens [R], int32 each.
    """
    _list_pages_kernel[(len(slots), PARTS)](
        table,
        slots,
        seq_lens,
        seq_lens if extend_lens is None else extend_lens,
        indptr,
        indices,
        last_page_lens,
        table.stride(0),
        window or 0,
        HAS_WINDOW=window is not None,
        PAGE=page_size,
        PARTS=PARTS,
        BLOCK=512,
        num_warps=4,
    )
