"""Placing tokens of rows whose length only the device knows, in Triton: torch would take fifty launches for it."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.late_rows import PlacedTokens, SlotTokens, StepTokens

BLOCK = 128
"""Tokens, or random numbers, of one program."""


@triton.jit(do_not_specialize=["count"])
def _place_kernel(
    ids,
    rows,
    places,
    slots,
    starts,
    extend_lens,
    runs,
    known,
    newest,
    row_length,
    recent,
    locs,
    table,
    placed_ids,
    positions,
    placed_locs,
    seq_lens,
    drafts,
    count,
    table_stride,
    PAGE: tl.constexpr,
    RUN: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST_SPACE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Places a block of tokens in one page space: computes their KV slots; in the first space also everything else of
    them.
    """
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < count
    row = tl.load(rows + token, mask=inside, other=0)
    place = tl.load(places + token, mask=inside, other=0)
    slot = tl.load(slots + row, mask=inside, other=0)
    given = tl.load(starts + row, mask=inside, other=0)
    late = given < 0
    start = tl.where(late, tl.load(row_length + slot, mask=inside & late, other=0), given)
    extend_len = tl.load(extend_lens + row, mask=inside, other=1)
    live = inside & (place < extend_len)
    position = tl.minimum(start + place, start + extend_len - 1)
    pages = tl.load(table + slot * table_stride + position // PAGE, mask=live & late, other=0).to(tl.int64)
    loc = tl.where(late, pages * PAGE + position % PAGE, tl.load(locs + token, mask=inside, other=0))
    tl.store(placed_locs + token, tl.where(live, loc, 0), mask=inside)
    if FIRST_SPACE:
        new = tl.load(newest + slot, mask=inside, other=0)
        have = tl.load(known + row, mask=inside, other=-1)
        unknown = start + 1 - have
        came = inside & (have >= 0) & (unknown >= 0) & (unknown <= RUN) & (unknown <= WIDTH + 1)
        run = runs + row * RUN
        expected = tl.load(run + unknown - 1, mask=came & (unknown > 0), other=0)
        came = came & ((unknown == 0) | (expected == new))
        for before in tl.static_range(WIDTH):
            check = came & (before < unknown - 1)
            expected = tl.load(run + before, mask=check, other=0)
            came = came & (tl.load(recent + slot * WIDTH + before, mask=check, other=0) == expected)
        at = unknown + place - 1
        id = tl.load(ids + token, mask=inside, other=0)
        wanted = came & live & (id == -2) & (at >= 0) & (at < RUN)
        draft = tl.load(run + at, mask=wanted, other=-2)
        draft = tl.where(draft < 0, -2, draft)
        tl.store(drafts + token, draft, mask=inside)
        tl.store(placed_ids + token, tl.where(draft >= 0, draft, tl.where(id < 0, new, id)), mask=inside)
        tl.store(positions + token, position, mask=inside)
        tl.store(seq_lens + row, (start + extend_len).to(tl.int32), mask=inside & (place == 0))


def place_tokens(
    ids: Tensor,
    tokens: StepTokens,
    slots: SlotTokens,
    locs: Sequence[Tensor],
    tables: Sequence[Tensor],
    page_size: int,
) -> PlacedTokens:
    """Implements the op `place_tokens`. `kernels/late_rows.py` describes its arguments and result."""
    count = len(ids)
    placed = PlacedTokens(
        torch.empty_like(ids),
        torch.empty_like(ids),
        tuple(torch.empty_like(given) for given in locs),
        torch.empty(len(tokens.slots), dtype=torch.int32, device=ids.device),
        torch.empty_like(ids),
    )
    for space, (given, table) in enumerate(zip(locs, tables, strict=True)):
        _place_kernel[(triton.cdiv(count, BLOCK),)](
            ids,
            *tokens,
            *slots,
            given,
            table,
            placed.ids,
            placed.positions,
            placed.locs[space],
            placed.seq_lens,
            placed.drafts,
            count,
            table.stride(0),
            PAGE=page_size,
            RUN=tokens.runs.shape[1],
            WIDTH=slots.recent.shape[1],
            FIRST_SPACE=space == 0,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return placed


@triton.jit
def _shifted(x, BY: tl.constexpr):
    """Shifts right, with zeros from the left."""
    return (x >> BY) & ((1 << (64 - BY)) - 1)


@triton.jit
def _mixed(x):
    x = x - 7046029254386353131
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


@triton.jit(do_not_specialize=["count"])
def _uniforms_kernel(seeds, lengths, uniforms, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    seed = tl.load(seeds + at, mask=inside, other=0)
    mixed = _mixed(_mixed(seed) ^ tl.load(lengths + at, mask=inside, other=0))
    tl.store(uniforms + at, _shifted(mixed, 11).to(tl.float64) * 1.1102230246251565e-16, mask=inside)


def uniforms_at(seeds: Tensor, lengths: Tensor) -> Tensor:
    """Implements the op `uniforms_at`. `kernels/late_rows.py` describes its arguments and result."""
    uniforms = torch.empty(len(seeds), dtype=torch.float64, device=seeds.device)
    _uniforms_kernel[(triton.cdiv(len(seeds), BLOCK),)](seeds, lengths, uniforms, len(seeds), BLOCK=BLOCK)
    return uniforms
