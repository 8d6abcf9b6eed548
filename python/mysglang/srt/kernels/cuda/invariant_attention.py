"""Paged attention in Triton that gives a query the same result bit for bit, whatever the step it is computed in.

One kernel for prompts, chunks and decoding. Its tiles stand at fixed places:

    queries   TOKENS positions that begin at a multiple of it, with the query heads of one KV head beside each other
    keys      tiles of KEYS; `invariant_cut.SPAN` of them are a part of their own, and parts are joined one by one

A decode step of few rows shares the spans of a row among programs, and joins what they leave; other steps join them in
one program as it goes. Both join by `_joined`, whose roundings are all spelled out, so nothing is left to the compiler
to differ in. What a query does not see weighs exactly nothing. Softmax online as in `attention` beside this.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.cuda import invariant_cut
from mysglang.srt.kernels.cuda.attention import AttentionShape, _kv_slots, _scores

LINES = 64
"""Queries of a tile, all heads counted."""


@triton.jit
def _joined(top, total, attended, part_top, part_total, part):
    """Two maxima, sums of exponents and weighted sums as one. -inf, 0, 0 add nothing."""
    highest = tl.maximum(top, part_top)
    # Nothing at all would compare -inf with -inf.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    old = tl.exp2(top - base)
    new = tl.exp2(part_top - base)
    total = tl.fma(part_total, new, total * old)
    attended = tl.fma(part, tl.broadcast_to(new[:, None], part.shape), attended * old[:, None])
    return highest, total, attended


# What differs between steps must not choose another compiled kernel.
@triton.jit(do_not_specialize=["splits", "programs", "spans"])
def _part_kernel(
    q,
    keys,
    values,
    table,
    slots,
    seq_lens,
    extend_lens,
    token_starts,
    tops,
    totals,
    parts,
    q_stride,
    table_stride,
    scale,
    cap,
    window,
    kv_heads,
    splits,
    programs,
    spans,
    GROUP: tl.constexpr,
    GROUP_LINES: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One tile of one row's queries, of one KV head. Of the row's `splits`, `spans` spans of keys each, it has every
    one of so many `programs`.
    """
    TOKENS: tl.constexpr = LINES // GROUP_LINES
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    mine = tl.program_id(2) % programs
    end = tl.load(seq_lens + row)
    start = end - tl.load(extend_lens + row)
    first = (start // TOKENS + tl.program_id(2) // programs) * TOKENS
    last = tl.minimum(first + TOKENS, end)
    if (first >= end) | (mine * spans * SPAN >= last):
        return
    line = tl.arange(0, LINES)
    d = tl.arange(0, WIDTH)
    positions = first + line // GROUP_LINES
    head = kv_head * GROUP + line % GROUP_LINES
    own = (positions >= start) & (positions < end) & (line % GROUP_LINES < GROUP)
    token = tl.load(token_starts + row).to(tl.int64) + positions - start
    block = own[:, None] & (d < DIM)[None, :]
    q_block = tl.load(q + token[:, None] * q_stride + head[:, None] * DIM + d[None, :], mask=block, other=0.0)
    row_table = table + tl.load(slots + row).to(tl.int64) * table_stride

    seen = 0
    own_seen = 0
    if HAS_WINDOW:
        seen = tl.maximum(first + 1 - window, 0) // KEYS * KEYS
        own_seen = tl.maximum(tl.maximum(first, start) + 1 - window, 0)
    for split in range(mine, tl.minimum(splits, tl.cdiv(last, spans * SPAN)), programs):
        top = tl.full((LINES,), float("-inf"), tl.float32)
        total = tl.zeros((LINES,), tl.float32)
        attended = tl.zeros((LINES, WIDTH), tl.float32)
        span_end = tl.minimum(split * spans + spans, tl.cdiv(last, SPAN))
        for span in range(tl.maximum(split * spans, seen // SPAN), span_end):
            part_top = tl.full((LINES,), float("-inf"), tl.float32)
            part_total = tl.zeros((LINES,), tl.float32)
            part = tl.zeros((LINES, WIDTH), tl.float32)
            for at in range(tl.maximum(span * SPAN, seen), tl.minimum(span * SPAN + SPAN, last), KEYS):
                key = at + tl.arange(0, KEYS)
                # Pages behind the window of all the step's queries may be anybody's.
                inside = (key >= own_seen) & (key < end)
                offsets = (_kv_slots(row_table, key, inside, PAGE) * kv_heads + kv_head) * DIM
                there = inside[:, None] & (d < DIM)[None, :]
                k = tl.load(keys + offsets[:, None] + d[None, :], mask=there, other=0.0)
                v = tl.load(values + offsets[:, None] + d[None, :], mask=there, other=0.0)
                visible = inside[None, :] & (key[None, :] <= positions[:, None])
                if HAS_WINDOW:
                    visible &= key[None, :] > positions[:, None] - window
                s = tl.where(visible, _scores(q_block, tl.trans(k), scale, cap, CAP), float("-inf"))
                highest = tl.maximum(part_top, tl.max(s, 1))
                base = tl.where(highest == float("-inf"), 0.0, highest)
                p = tl.exp2(s - base[:, None])
                shrink = tl.exp2(part_top - base)
                part_total = tl.fma(part_total, shrink, tl.sum(p, 1))
                part = tl.dot(p.to(v.dtype), v, part * shrink[:, None], input_precision="ieee")
                part_top = highest
            top, total, attended = _joined(top, total, attended, part_top, part_total, part)
        out = (token * kv_heads * GROUP + head) * splits + split
        tl.store(tops + out, top, mask=own)
        tl.store(totals + out, total, mask=own)
        tl.store(parts + out[:, None] * DIM + d[None, :], attended, mask=block)


@triton.jit(do_not_specialize=["splits"])
def _join_kernel(
    tops,
    totals,
    parts,
    seq_lens,
    out,
    heads,
    splits,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """All heads of one token. With several splits the step has one token in each row, and a split is a span."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    inside = (head < heads)[:, None] & (d < DIM)[None, :]
    count = splits
    if splits > 1:
        count = tl.minimum(splits, tl.cdiv(tl.load(seq_lens + token), SPAN))
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    attended = tl.zeros((HEADS, WIDTH), tl.float32)
    for split in range(count):
        at = (token * heads + head) * splits + split
        part_top = tl.load(tops + at, mask=head < heads, other=float("-inf"))
        part_total = tl.load(totals + at, mask=head < heads, other=0.0)
        part = tl.load(parts + at[:, None] * DIM + d[None, :], mask=inside, other=0.0)
        top, total, attended = _joined(top, total, attended, part_top, part_total, part)
    attended = tl.div_rn(attended, tl.broadcast_to(tl.maximum(total, 1e-30)[:, None], attended.shape))
    tl.store(out + (token * heads + head)[:, None] * DIM + d[None, :], attended, mask=inside)


def invariant_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    token_starts: Tensor,
    max_extend: int,
    page_size: int,
    spec: AttentionShape,
    *,
    decoding: bool,
) -> Tensor:
    """New tokens of each row, over all keys before them. q: [T, num_heads * dim]; like q back, dense.

    keys, values: [KV slots, num_kv_heads, dim]. table: [num_slots + 1, max_pages] int32. slots, seq_lens, extend_lens,
    token_starts: [R]. No row has more than max_extend. decoding: each has one, and the launch depends on no length.
    """
    tokens, heads, dim = len(q), spec.num_heads, spec.head_dim
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group = heads // spec.num_kv_heads
    group_lines = triton.next_power_of_2(group)
    lines = max(LINES, group_lines)
    width = max(16, triton.next_power_of_2(dim))
    cut = invariant_cut.cut_of(len(slots), table.shape[1] * page_size, spec.num_kv_heads, decoding=decoding)
    splits = cut.splits
    # Queries that do not begin at a tile's first place reach into one more.
    tiles = 1 if decoding else triton.cdiv(max_extend, lines // group_lines) + 1
    tops, totals = torch.empty(2, tokens * heads, splits, dtype=torch.float32, device=q.device)
    parts = torch.empty(tokens * heads, splits, dim, dtype=torch.float32, device=q.device)
    _part_kernel[(len(slots), spec.num_kv_heads, tiles * cut.programs)](
        q,
        keys,
        values,
        table,
        slots,
        seq_lens,
        extend_lens,
        token_starts,
        tops,
        totals,
        parts,
        q.stride(0),
        table.stride(0),
        spec.scale,
        spec.logit_cap,
        spec.window or 0,
        spec.num_kv_heads,
        splits,
        cut.programs,
        cut.spans,
        GROUP=group,
        GROUP_LINES=group_lines,
        DIM=dim,
        PAGE=page_size,
        HAS_WINDOW=spec.window is not None,
        CAP=spec.logit_cap > 0,
        LINES=lines,
        WIDTH=width,
        KEYS=64 if width * q.element_size() <= 256 else 32,
        SPAN=invariant_cut.SPAN,
        num_warps=4,
        num_stages=2,
    )
    _join_kernel[(tokens,)](
        tops,
        totals,
        parts,
        seq_lens,
        out,
        heads,
        splits,
        DIM=dim,
        HEADS=triton.next_power_of_2(heads),
        WIDTH=width,
        SPAN=invariant_cut.SPAN,
        num_warps=4,
    )
    return out
