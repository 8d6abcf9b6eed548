"""The sort of (row, expert) pairs by expert, in Triton, each expert's padded to whole blocks of rows.

The host learns nothing of it: it launches the same programs whatever the routing, so a step can be captured. Pairs of
an expert keep their order, so that the same routing always gives the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.mixture import MANY_PAIRS, Launch
from mysglang.srt.kernels.cuda.overlap import overlapping

SORTED_PAIRS = 1024
"""Pairs that a program of the sort reads together."""
SORTED_ALONE = MANY_PAIRS
"""Most pairs that each expert's program counts by itself. More are counted first, in pieces."""
COUNTED_PAIRS = 512
"""Pairs of such a piece, which one program places."""
COMPARED_PAIRS = 32
"""Pairs of a piece that are compared with all of it at once, to number those of an expert."""
COUNTED_TOGETHER = 32
"""Pieces whose counts are added up, too, and are read together."""
MOST_ROWS = 128
"""Most rows of a block."""


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
    TOGETHER: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Counts the pairs of each expert in one piece of the list -> counts [pieces, EXPERTS], and adds them to those of
    TOGETHER pieces -> sums [groups, EXPERTS].
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
    tl.atomic_add(sums + piece // TOGETHER * EXPERTS + number, found, sem="relaxed")


@triton.jit(do_not_specialize=["pairs", "pieces", "rows"])
def _place_kernel(
    ids,
    counts,
    sums,
    order,
    block_experts,
    blocks_used,
    pairs,
    pieces,
    rows,
    experts,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    COMPARED: tl.constexpr,
    TOGETHER: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Lists the pairs of one piece, in their order, in the blocks of `rows` of their experts."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    piece = tl.program_id(0)
    number = tl.arange(0, EXPERTS)
    group = piece // TOGETHER
    at = group * TOGETHER + tl.arange(0, TOGETHER)
    earlier_pieces = tl.load(counts + at[:, None] * EXPERTS + number[None, :], mask=(at < piece)[:, None], other=0)
    done = tl.sum(earlier_pieces, 0)
    all_counts = tl.zeros((EXPERTS,), tl.int32)
    groups = tl.cdiv(pieces, TOGETHER)
    for first in range(0, groups, TOGETHER):
        at = first + tl.arange(0, TOGETHER)
        some = tl.load(sums + at[:, None] * EXPERTS + number[None, :], mask=(at < groups)[:, None], other=0)
        all_counts += tl.sum(some, 0)
        done += tl.sum(tl.where((at < group)[:, None], some, 0), 0)
    blocks = (all_counts + rows - 1) // rows
    before = tl.cumsum(blocks, 0) - blocks
    if piece == 0:
        tl.store(blocks_used, tl.sum(blocks))
    # The programs share the experts' lists of blocks, and the places of each last block that no pair has.
    for expert in range(piece, experts, pieces):
        own = tl.sum(tl.where(number == expert, all_counts, 0))
        own_blocks = tl.sum(tl.where(number == expert, blocks, 0))
        own_before = tl.sum(tl.where(number == expert, before, 0))
        for block in range(own_blocks):
            tl.store(block_experts + own_before + block, expert)
        padding = own + tl.arange(0, MOST_ROWS)
        tl.store(order + own_before * rows + padding, pairs, mask=padding < own_blocks * rows)
    pair = piece * CHUNK + tl.arange(0, CHUNK)
    chosen = tl.load(ids + pair, mask=pair < pairs, other=EXPERTS)
    # Pairs of the same expert that stand before each one in the piece.
    earlier = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, CHUNK, COMPARED):
        other = piece * CHUNK + first + tl.arange(0, COMPARED)
        same = tl.load(ids + other, mask=other < pairs, other=EXPERTS)[None, :] == chosen[:, None]
        earlier += tl.sum((same & (other[None, :] < pair[:, None])).to(tl.int32), 1)
    begin = before * rows + done
    inside = pair < pairs
    place = earlier + tl.gather(begin, tl.where(inside, chosen, 0), 0)
    tl.store(order + place, pair, mask=inside)


def sort_launches(
    ids: Tensor, order: Tensor, block_experts: Tensor, used: Tensor, experts: int, rows: int
) -> Iterator[Launch]:
    """Yields the kernel launches that list the pairs by expert, for blocks of `rows`."""
    pairs, wide, overlap = ids.numel(), triton.next_power_of_2(experts), overlapping(ids)
    if pairs <= SORTED_ALONE:
        constants = {"EXPERTS": wide, "CHUNK": SORTED_PAIRS, "MOST_ROWS": MOST_ROWS, "num_warps": 4, **overlap}
        yield _sort_kernel, (experts,), (ids, order, block_experts, used, pairs, rows), constants
        return
    pieces = triton.cdiv(pairs, COUNTED_PAIRS)
    counts, sums = ids.new_empty(pieces, wide), ids.new_zeros(triton.cdiv(pieces, COUNTED_TOGETHER), wide)
    constants = {
        "EXPERTS": wide,
        "CHUNK": COUNTED_PAIRS,
        "TOGETHER": COUNTED_TOGETHER,
        "num_warps": 8,
        **overlap,
    }
    yield _count_kernel, (pieces,), (ids, counts, sums, pairs), constants
    yield (
        _place_kernel,
        (pieces,),
        (ids, counts, sums, order, block_experts, used, pairs, pieces, rows, experts),
        {**constants, "COMPARED": COMPARED_PAIRS, "MOST_ROWS": MOST_ROWS},
    )
