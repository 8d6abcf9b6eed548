"""Paged attention in Triton, the portable one: split decode, and extend over a cached prefix.

Both read keys and values through the page table: position p of a row lies at page table[slot, p // page] and offset
p % page. Softmax is computed online (Milakov and Gimelshein, 2018) in base 2; a row's splits are joined by their
log-sum-exp.

The kernels take their arguments one by one: tensors, strides, sizes, then constants. Triton can take them in tuples,
which the host would pack and take apart again at every launch of every layer.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.fp8 import from_stored
from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.fp8 import bits, format_of

LOG2E = 1.4426950408889634
MAX_SPLITS = 16
"""Splits of one row's keys in decoding; fixed, so that the launch does not depend on lengths and can be captured."""
SHORT = 8
"""New tokens of a row up to which it is computed as in decoding: its keys are split, and read once for all heads that
share them. Fixed, so that one kernel is compiled for all."""
MOST_LINES = 64
"""Queries of a tile of such rows at most: new tokens times the heads that share a KV head."""


class AttentionShape(Protocol):
    """Facts about a layer that the kernels need (forward.forward_batch.AttentionSpec)."""

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def scale(self) -> float: ...

    @property
    def window(self) -> int | None: ...

    @property
    def logit_cap(self) -> float: ...

    @property
    def chunked(self) -> bool: ...

    @property
    def sinks(self) -> Tensor | None: ...

    @property
    def value_scale(self) -> float: ...


ALL, WINDOW, CHUNK = 0, 1, 2
"""Keys that a query sees: all before it, a window of them, or those of its own chunk, which is as long as a window."""


def reach_of(spec: AttentionShape) -> int:
    """Returns which keys a query of this spec sees, as one of the constants above."""
    if spec.window is None:
        return ALL
    return CHUNK if spec.chunked else WINDOW


@triton.jit
def _scores(q, k, scale, cap, CAP: tl.constexpr):
    """Computes the scores in base 2, [queries, keys]."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    if CAP:
        x = s / cap
        # tanh, which Triton does not have, from the sigmoid.
        s = cap * (2 * tl.sigmoid(2 * x) - 1)
    return s * 1.4426950408889634


@triton.jit
def _first_seen(positions, window, REACH: tl.constexpr):
    """Returns the position of the first key that a query at each of these positions attends to."""
    if REACH == 1:
        first = tl.maximum(positions + 1 - window, 0)
    elif REACH == 2:
        first = positions // window * window
    else:
        first = positions * 0
    return first


@triton.jit
def _kv_slots(table, positions, inside, PAGE: tl.constexpr):
    """Returns the KV slots of positions of one row of the table; slot 0 outside."""
    pages = tl.load(table + positions // PAGE, mask=inside, other=0).to(tl.int64)
    return tl.where(inside, pages * PAGE + positions % PAGE, 0)


@triton.jit
def _decode_kernel(
    q,
    keys,
    values,
    table,
    slots,
    seq_lens,
    extend_lens,
    token_starts,
    partial,
    partial_lse,
    q_stride,
    table_stride,
    scale,
    cap,
    window,
    kv_heads,
    room,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    REACH: tl.constexpr,
    CAP: tl.constexpr,
    SEVERAL: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Attends over one split of one row's keys, for the query heads of one KV head and the row's one new token, or
    SEVERAL.
    """
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens + row)
    token = row
    tokens = 1
    if SEVERAL:
        token = tl.load(token_starts + row).to(tl.int64)
        tokens = tl.load(extend_lens + row)
    first = _first_seen(seq_len - tokens, window, REACH)
    # Whole tiles of keys: a split that ended within one would read a part of it for nothing.
    span = tl.cdiv(tl.cdiv(seq_len - first, SPLITS), KEYS) * KEYS
    begin = first + split * span
    end = tl.minimum(begin + span, seq_len)

    # The query heads of one KV head share the keys that are read. Tensor cores take 16 of them at least, so a smaller
    # group has lines that belong to no head.
    query = tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    head = kv_head * GROUP + query
    mine = query < GROUP
    if SEVERAL:
        # The heads of the first token, then those of the next.
        head = kv_head * GROUP + query % GROUP
        token += query // GROUP
        # What fills a row up sees what its last token does.
        mine = query < GROUP * tl.maximum(tokens, room)
        seen_from = _first_seen(tl.minimum(seq_len - tokens + query // GROUP, seq_len - 1), window, REACH)
    own = mine[:, None] & (d < DIM)[None, :]
    from_token = token * q_stride
    if SEVERAL:
        from_token = from_token[:, None]
    q_block = tl.load(q + from_token + head[:, None] * DIM + d[None, :], mask=own, other=0.0)
    row_table = table + tl.load(slots + row) * table_stride

    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    sums = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, WIDTH), tl.float32)
    for at in tl.range(begin, end, KEYS):
        positions = at + tl.arange(0, KEYS)
        inside = positions < end
        offsets = (_kv_slots(row_table, positions, inside, PAGE) * kv_heads + kv_head) * DIM
        there = inside[:, None] & (d < DIM)[None, :]
        k = tl.load(keys + offsets[:, None] + d[None, :], mask=there, other=0)
        v = tl.load(values + offsets[:, None] + d[None, :], mask=there, other=0)
        k, v = from_stored(k, q_block.dtype, FORMAT), from_stored(v, q_block.dtype, FORMAT)
        visible = inside[None, :]
        if SEVERAL:
            visible &= positions[None, :] < tl.minimum(seq_len - tokens + query // GROUP + 1, seq_len)[:, None]
            visible &= positions[None, :] >= seen_from[:, None]
        s = tl.where(visible, _scores(q_block, tl.trans(k), scale, cap, CAP), float("-inf"))
        # Each tile has a key that one token sees, so `top` is finite.
        top = tl.maximum(highest, tl.max(s, 1))
        base = top
        if SEVERAL:
            # A token that has seen no key yet would compare -inf with -inf.
            base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(highest - base)
        sums = sums * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        highest = top
    # An empty split stays at -inf and weighs nothing.
    lse = tl.where(sums > 0, highest + tl.log2(tl.maximum(sums, 1e-30)), float("-inf"))
    acc = acc / tl.maximum(sums, 1e-30)[:, None]
    out = ((token * kv_heads * GROUP + head) * SPLITS + split).to(tl.int64)
    tl.store(partial + out[:, None] * DIM + d[None, :], acc, mask=own)
    tl.store(partial_lse + out, lse, mask=mine)


@triton.jit
def _join_kernel(
    partial,
    partial_lse,
    out,
    sinks,
    heads,
    value_scale,
    SINKS: tl.constexpr,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Merges the splits of one query head of one row."""
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, WIDTH)
    lse = tl.load(partial_lse + head * SPLITS + split)
    highest = tl.max(lse)
    total = 0.0
    if SINKS:
        # A sink is one more score in the sum, whose value is zero: it only takes weight from the others.
        sink = tl.load(sinks + head % heads) * 1.4426950408889634
        highest = tl.maximum(highest, sink)
        total = tl.exp2(sink - highest)
    weights = tl.exp2(lse - highest)
    total += tl.sum(weights)
    parts = tl.load(partial + (head * SPLITS + split)[:, None] * DIM + d[None, :], mask=(d < DIM)[None, :], other=0.0)
    joined = tl.sum(parts * weights[:, None], 0) / total * value_scale
    tl.store(out + head * DIM + d, joined, mask=d < DIM)


@triton.jit
def _extend_kernel(
    q,
    keys,
    values,
    table,
    slots,
    seq_lens,
    extend_lens,
    token_starts,
    out,
    sinks,
    q_stride,
    out_stride,
    table_stride,
    value_scale,
    scale,
    cap,
    window,
    kv_heads,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    REACH: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attends with a block of one row's new tokens, for one query head."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.program_id(2)
    extend_len = tl.load(extend_lens + row)
    # The grid is as wide as the longest row's tokens; programs past the end of a shorter row have nothing to do.
    if block * QUERIES >= extend_len:
        return
    start = tl.load(seq_lens + row) - extend_len
    kv_head = head // GROUP
    index = block * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    own = (index < extend_len)[:, None] & (d < DIM)[None, :]
    tokens = (tl.load(token_starts + row) + index).to(tl.int64)
    q_block = tl.load(q + tokens[:, None] * q_stride + head * DIM + d[None, :], mask=own, other=0.0)
    q_positions = start + index
    row_table = table + tl.load(slots + row) * table_stride

    seen = _first_seen(start + block * QUERIES, window, REACH)
    # Tiles of keys begin at multiples of KEYS, wherever a window begins; the last query of the block sees the most.
    first = seen // KEYS * KEYS
    end = tl.minimum(start + (block + 1) * QUERIES, start + extend_len)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    sums = tl.zeros((QUERIES,), tl.float32)
    if SINKS:
        # A sink acts like a first key with that score and the value zero.
        highest = tl.zeros((QUERIES,), tl.float32) + tl.load(sinks + head) * 1.4426950408889634
        sums = tl.full((QUERIES,), 1.0, tl.float32)
    acc = tl.zeros((QUERIES, WIDTH), tl.float32)
    for at in tl.range(first, end, KEYS):
        positions = at + tl.arange(0, KEYS)
        # Pages before the window of all these queries may belong to another row by now.
        inside = (positions >= seen) & (positions < end)
        offsets = (_kv_slots(row_table, positions, inside, PAGE) * kv_heads + kv_head) * DIM
        there = inside[:, None] & (d < DIM)[None, :]
        k = tl.load(keys + offsets[:, None] + d[None, :], mask=there, other=0)
        v = tl.load(values + offsets[:, None] + d[None, :], mask=there, other=0)
        k, v = from_stored(k, q_block.dtype, FORMAT), from_stored(v, q_block.dtype, FORMAT)
        visible = inside[None, :] & (positions[None, :] <= q_positions[:, None])
        if REACH != 0:
            visible &= positions[None, :] >= _first_seen(q_positions, window, REACH)[:, None]
        s = tl.where(visible, _scores(q_block, tl.trans(k), scale, cap, CAP), float("-inf"))
        top = tl.maximum(highest, tl.max(s, 1))
        # A query that has seen no key yet would compare -inf with -inf.
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(highest - base)
        sums = sums * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        highest = top
    acc = acc / tl.maximum(sums, 1e-30)[:, None] * value_scale
    tl.store(out + tokens[:, None] * out_stride + head * DIM + d[None, :], acc, mask=own)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    page_size: int,
    spec: AttentionShape,
    *,
    extends: tuple[Tensor, Tensor] | None = None,
    room: int = 0,
) -> Tensor:
    """Attends with one new token in each row, or up to SHORT. q: [T, num_heads * dim]; keys, values: [KV slots,
    num_kv_heads, dim], of any dtype that is stored. Returns the shape and dtype of q.

    extends: new tokens of each row, [R] int32, and where they begin, [R] int64; None: each row has one. room: so many
    queries of each row are computed at least; those that are no tokens get what its last one does.
    """
    rows, group = len(slots), spec.num_heads // spec.num_kv_heads
    splits, several = MAX_SPLITS, extends is not None
    extend_lens, token_starts = extends or (slots, slots)
    partial = torch.empty(len(q) * spec.num_heads, splits, spec.head_dim, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(len(q) * spec.num_heads, splits, dtype=torch.float32, device=q.device)
    width = max(16, triton.next_power_of_2(spec.head_dim))
    _decode_kernel[(rows, spec.num_kv_heads, splits)](
        q,
        bits(keys),
        bits(values),
        table,
        slots,
        seq_lens,
        extend_lens,
        token_starts,
        partial,
        partial_lse,
        q.stride(0),
        table.stride(0),
        spec.scale,
        spec.logit_cap,
        spec.window or 0,
        spec.num_kv_heads,
        room,
        FORMAT=format_of(keys.dtype),
        GROUP=group,
        DIM=spec.head_dim,
        PAGE=page_size,
        SPLITS=splits,
        REACH=reach_of(spec),
        CAP=spec.logit_cap > 0,
        SEVERAL=several,
        QUERIES=max(16, triton.next_power_of_2(group * (SHORT if several else 1))),
        WIDTH=width,
        KEYS=64 if width <= 128 else 32,
        num_warps=4,
        **overlapping(q),
    )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _join_kernel[(len(q) * spec.num_heads,)](
        partial,
        partial_lse,
        out,
        spec.sinks,
        spec.num_heads,
        spec.value_scale,
        SINKS=spec.sinks is not None,
        DIM=spec.head_dim,
        SPLITS=splits,
        WIDTH=width,
        num_warps=2,
        **overlapping(q),
    )
    return out


def takes_short(spec: AttentionShape) -> bool:
    """True if `decode_attention` takes rows of up to SHORT new tokens in such a layer."""
    return spec.num_heads // spec.num_kv_heads * SHORT <= MOST_LINES


def extend_attention(
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
    room: int = 0,
) -> Tensor:
    """Attends with any number of new tokens in each row, which begin at token_starts [R] int64.

    Otherwise as `decode_attention`. room: rows have space for so many tokens; those that hold no token become zeros.
    """
    empty = torch.zeros if room else torch.empty
    out = empty(q.shape, dtype=q.dtype, device=q.device)
    width = max(16, triton.next_power_of_2(spec.head_dim))
    queries = min(64, max(16, triton.next_power_of_2(max_extend)))
    _extend_kernel[(len(slots), spec.num_heads, triton.cdiv(max_extend, queries))](
        q,
        bits(keys),
        bits(values),
        table,
        slots,
        seq_lens,
        extend_lens,
        token_starts,
        out,
        spec.sinks,
        q.stride(0),
        out.stride(0),
        table.stride(0),
        spec.value_scale,
        spec.scale,
        spec.logit_cap,
        spec.window or 0,
        spec.num_kv_heads,
        FORMAT=format_of(keys.dtype),
        GROUP=spec.num_heads // spec.num_kv_heads,
        DIM=spec.head_dim,
        PAGE=page_size,
        REACH=reach_of(spec),
        CAP=spec.logit_cap > 0,
        SINKS=spec.sinks is not None,
        QUERIES=queries,
        WIDTH=width,
        KEYS=64 if width <= 128 else 32,
        num_warps=4,
    )
    return out
