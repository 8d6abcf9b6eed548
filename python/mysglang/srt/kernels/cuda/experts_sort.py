"""The sort of (row, expert) pairs by expert, each expert's padded to whole blocks of rows: a kernel of the kernels'
package in one block where it is at hand and has room for the list, and Triton otherwise.

The host learns nothing of it: it launches the same programs whatever the routing, so a step can be captured. Pairs of
an expert keep their order, so that the same routing always gives the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.mixture import MANY_PAIRS, Called, Launch
from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.op import kernel_module

SORTED_PAIRS = 1024
"""Pairs that a program of the sort reads together."""
SORTED_ALONE = MANY_PAIRS
"""Most pairs that each expert's program counts by itself. More are counted first, in pieces."""
COUNTED_PAIRS = 256
"""Pairs of such a piece, which one program counts, and one places."""
COMPARED_PAIRS = 32
"""Pairs of a piece that are compared with all of it at once, to number those of an expert."""
SUMMED_EXPERTS = 16
"""Experts whose pieces one program adds up."""
SUMMED_PIECES = 128
"""Pieces that it adds up at once."""
MOST_ROWS = 256
"""Most rows of a block; a power of two."""


@triton.jit(do_not_specialize=["pairs", "rows"])
def _sort_kernel(
    ids,
    order,
    block_experts,
    blocks_used,
    pairs,
    rows,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Lists the pairs of one expert, in their order, in its blocks of `rows`. EXPERTS: a power of two, at least the
    number of experts.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.program_id(0)
    # Each program counts the pairs of all experts, to know where its own blocks begin: no program waits for another,
    # and the host for none.
    number = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=0)
        counts += tl.histogram(chosen, EXPERTS, mask=pair < pairs)
    blocks = (counts + rows - 1) // rows
    before = tl.sum(tl.where(number < expert, blocks, 0))
    own = tl.sum(tl.where(number == expert, counts, 0))
    own_blocks = (own + rows - 1) // rows
    if expert == tl.num_programs(0) - 1:
        tl.store(blocks_used, before + own_blocks)
    for block in range(own_blocks):
        tl.store(block_experts + before + block, expert)
    begin = before * rows
    # In the order of the pairs, which a counter that programs share would not keep.
    done = 0
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        mine = (tl.load(ids + pair, mask=pair < pairs, other=0) == expert) & (pair < pairs)
        place = begin + done + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(order + place, pair, mask=mine)
        done += tl.sum(mine.to(tl.int32))
    # Places of the last block that no pair has: the number `pairs` is that of none.
    padding = own + tl.arange(0, MOST_ROWS)
    tl.store(order + begin + padding, pairs, mask=padding < own_blocks * rows)


@triton.jit(do_not_specialize=["pairs"])
def _count_kernel(
    ids,
    counts,
    sums,
    pairs,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Counts the pairs of each expert in one piece of the list -> counts [pieces, EXPERTS], and adds them to those of
    all pieces -> sums [EXPERTS].
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    piece = tl.program_id(0)
    pair = piece * CHUNK + tl.arange(0, CHUNK)
    chosen = tl.load(ids + pair, mask=pair < pairs, other=0)
    found = tl.histogram(chosen, EXPERTS, mask=pair < pairs)
    number = tl.arange(0, EXPERTS)
    tl.store(counts + piece * EXPERTS + number, found)
    # Whole numbers have the same sum in any order.
    tl.atomic_add(sums + number, found, mask=found > 0, sem="relaxed")


@triton.jit(do_not_specialize=["pairs", "pieces", "rows"])
def _begin_kernel(
    counts,
    sums,
    order,
    block_experts,
    blocks_used,
    pairs,
    pieces,
    rows,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECES: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Turns the counts of COLUMNS experts into the places where each piece's pairs begin, in blocks of `rows`. Writes
    the experts' lists of blocks, and `pairs` at the places of each last block that no pair has.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    number = tl.arange(0, EXPERTS)
    own = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    blocks = (tl.load(sums + number) + rows - 1) // rows
    if tl.program_id(0) == 0:
        tl.store(blocks_used, tl.sum(blocks))
    before = tl.sum(tl.where(number[:, None] < own[None, :], blocks[:, None], 0), 0)
    own_count = tl.load(sums + own)
    own_blocks = (own_count + rows - 1) // rows
    for block in range(tl.max(own_blocks)):
        tl.store(block_experts + before + block, own, mask=block < own_blocks)
    place = own_count[None, :] + tl.arange(0, MOST_ROWS)[:, None]
    tl.store(order + (before * rows)[None, :] + place, pairs, mask=place < (own_blocks * rows)[None, :])
    begin = before * rows
    for first in range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        at = counts + piece[:, None] * EXPERTS + own[None, :]
        found = tl.load(at, mask=(piece < pieces)[:, None], other=0)
        tl.store(at, begin[None, :] + tl.cumsum(found, 0) - found, mask=(piece < pieces)[:, None])
        begin += tl.sum(found, 0)


@triton.jit(do_not_specialize=["pairs"])
def _place_kernel(
    ids,
    begins,
    order,
    pairs,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    COMPARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Lists the pairs of one piece, in their order, from where those of each expert begin: begins [pieces, EXPERTS]."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    piece = tl.program_id(0)
    first = piece * CHUNK
    here = tl.minimum(pairs - first, CHUNK)
    at = tl.arange(0, CHUNK)
    chosen = tl.load(ids + first + at, mask=at < here, other=0)
    begin = tl.load(begins + piece * EXPERTS + chosen)
    # Pairs of the same expert that stand before each one in the piece.
    earlier = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, here, COMPARED):
        other = start + tl.arange(0, COMPARED)
        same = tl.load(ids + first + other, mask=other < here, other=EXPERTS)[:, None] == chosen[None, :]
        earlier += tl.sum((same & (other[:, None] < at[None, :])).to(tl.int32), 0)
    tl.store(order + begin + earlier, first + at, mask=at < here)


def sort_launches(
    ids: Tensor, order: Tensor, block_experts: Tensor, used: Tensor, experts: int, rows: int
) -> Iterator[Launch]:
    """Yields the kernel launches that list the pairs by expert, for blocks of `rows`."""
    pairs, wide, overlap = ids.numel(), triton.next_power_of_2(experts), overlapping(ids)
    whole = kernel_module("experts_sort") if ids.is_cuda else None
    if whole is not None and whole.fits(pairs, experts, len(order)):
        yield Called(whole.sort_pairs), (1,), (ids, order, block_experts, used, experts, rows), {}
        return
    if pairs <= SORTED_ALONE:
        constants = {"EXPERTS": wide, "CHUNK": SORTED_PAIRS, "MOST_ROWS": MOST_ROWS, "num_warps": 4, **overlap}
        yield _sort_kernel, (experts,), (ids, order, block_experts, used, pairs, rows), constants
        return
    pieces, columns = triton.cdiv(pairs, COUNTED_PAIRS), min(wide, SUMMED_EXPERTS)
    counts, sums = ids.new_empty(pieces, wide), ids.new_zeros(wide)
    one_piece = {"EXPERTS": wide, "CHUNK": COUNTED_PAIRS, "num_warps": 4, **overlap}
    some_experts = {"EXPERTS": wide, "COLUMNS": columns, "PIECES": SUMMED_PIECES, "MOST_ROWS": MOST_ROWS}
    yield _count_kernel, (pieces,), (ids, counts, sums, pairs), one_piece
    yield (
        _begin_kernel,
        (wide // columns,),
        (counts, sums, order, block_experts, used, pairs, pieces, rows),
        {**some_experts, "num_warps": 4, **overlap},
    )
    yield _place_kernel, (pieces,), (ids, counts, order, pairs), {**one_piece, "COMPARED": COMPARED_PAIRS}
