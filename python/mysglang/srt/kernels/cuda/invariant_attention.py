"""Paged attention in Triton that gives a query the same result bit for bit, whatever the step it is computed in.

One kernel for prompts, chunks and decoding. Its tiles are at fixed places:

    queries   TOKENS positions that begin at a multiple of it, with the query heads of one KV head beside each other;
              which of these places a query has must not matter to it, as the device is asked (`agree`)
    keys      tiles of KEYS; `invariant_cut.SPAN` of them are a part of their own, and parts are joined one by one

A decode step of few rows shares the spans of a row among programs, and joins what they leave; other steps join them in
one program as it goes. Both join by `_joined`, whose roundings are all spelled out, so nothing is left to the compiler
to differ in. What a query does not see weighs exactly nothing. Softmax online as in `attention` beside this.
"""

import logging
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.cuda import invariant_cut
from mysglang.srt.kernels.cuda.attention import AttentionShape, _first_seen, _kv_slots, _scores, reach_of
from mysglang.srt.kernels.cuda.fp8 import from_stored
from mysglang.srt.kernels.fp8 import bits, format_of, to_stored

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tile:
    """Launch parameters of the attention kernel. `lines` is the number of queries in a tile, where each head of a token
    counts as one query.
    """

    lines: int
    warps: int
    stages: int
    """Stages of the pipeline that fetches keys and values."""


TILE = Tile(64, 4, 2)
DECODE_TILES = (TILE, Tile(16, 1, 3), Tile(64, 4, 4))
"""Tiles for decode steps, which hold no more than the query heads of one KV head. The fastest one that gives the bits
of TILE on this device is used.
"""


@triton.jit
def _joined(top, total, attended, part_top, part_total, part):
    """Merges two maxima, sums of exponents and weighted sums. -inf, 0, 0 add nothing."""
    highest = tl.maximum(top, part_top)
    # An explicit constant, because otherwise -inf would be compared with -inf.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    old = tl.exp2(top - base)
    new = tl.exp2(part_top - base)
    total = tl.fma(part_total, new, total * old)
    attended = tl.fma(part, tl.broadcast_to(new[:, None], part.shape), attended * old[:, None])
    return highest, total, attended


# Values that differ between steps must not select another compiled kernel.
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
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_LINES: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    REACH: tl.constexpr,
    CAP: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Attends with one tile of one row's queries, for one KV head. A row has `splits` splits of `spans` spans of keys
    each; this program computes every `programs`-th of them.
    """
    TOKENS: tl.constexpr = LINES // GROUP_LINES
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    mine = tl.program_id(2) % programs
    end = tl.load(seq_lens + row)
    start = end - tl.load(extend_lens + row)
    first = (start // TOKENS + tl.program_id(2) // programs) * TOKENS
    last = tl.minimum(first + TOKENS, end)
    # Nothing to do: the tile is past the row's end, or this program's first span past all keys that the tile sees.
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

    # The first tile of keys is found from the tile's first place, not from the step's first token: a query must go
    # through the same tiles in a chunk, in a whole prompt and in a decode step.
    seen = _first_seen(first, window, REACH) // KEYS * KEYS
    own_seen = _first_seen(tl.maximum(first, start), window, REACH)
    for split in range(mine, tl.minimum(splits, tl.cdiv(last, spans * SPAN)), programs):
        top = tl.full((LINES,), float("-inf"), tl.float32)
        total = tl.zeros((LINES,), tl.float32)
        attended = tl.zeros((LINES, WIDTH), tl.float32)
        span_end = tl.minimum(split * spans + spans, tl.cdiv(last, SPAN))
        # A span begins from nothing and is joined whole, also where one program has all of them: so the sums are those
        # of a step that shares the spans among programs.
        for span in range(tl.maximum(split * spans, seen // SPAN), span_end):
            part_top = tl.full((LINES,), float("-inf"), tl.float32)
            part_total = tl.zeros((LINES,), tl.float32)
            part = tl.zeros((LINES, WIDTH), tl.float32)
            for at in range(tl.maximum(span * SPAN, seen), tl.minimum(span * SPAN + SPAN, last), KEYS):
                key = at + tl.arange(0, KEYS)
                # Pages before the window of all these queries may belong to another row by now.
                inside = (key >= own_seen) & (key < end)
                offsets = (_kv_slots(row_table, key, inside, PAGE) * kv_heads + kv_head) * DIM
                there = inside[:, None] & (d < DIM)[None, :]
                k = tl.load(keys + offsets[:, None] + d[None, :], mask=there, other=0)
                v = tl.load(values + offsets[:, None] + d[None, :], mask=there, other=0)
                k, v = from_stored(k, q_block.dtype, FORMAT), from_stored(v, q_block.dtype, FORMAT)
                visible = inside[None, :] & (key[None, :] <= positions[:, None])
                if REACH != 0:
                    visible &= key[None, :] >= _first_seen(positions, window, REACH)[:, None]
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
    sinks,
    heads,
    splits,
    value_scale,
    SINKS: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Merges all heads of one token. With several splits the step has one token in each row, and a split is a span."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    inside = (head < heads)[:, None] & (d < DIM)[None, :]
    count = splits
    # What programs of spans past the row's end should have left was never written.
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
    if SINKS:
        # A sink acts like one more key with that score and the value zero, after all parts, whatever their number.
        sink = tl.load(sinks + head, mask=head < heads, other=0.0) * 1.4426950408889634
        one, nothing = tl.full((HEADS,), 1.0, tl.float32), tl.zeros((HEADS, WIDTH), tl.float32)
        top, total, attended = _joined(top, total, attended, sink, one, nothing)
    attended = tl.div_rn(attended, tl.broadcast_to(tl.maximum(total, 1e-30)[:, None], attended.shape)) * value_scale
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
    room: int = 0,
) -> Tensor:
    """Attends with the new tokens of each row, over all keys before them. q: [T, num_heads * dim]. Returns the same
    shape and dtype, dense.

    keys, values: [KV slots, num_kv_heads, dim], of any dtype that is stored. table: [num_slots + 1, max_pages] int32.
    slots, seq_lens, extend_lens, token_starts: [R]. No row has more than max_extend. decoding: each has one, and the
    launch depends on no length. room: rows have room for so many tokens; zeros come back for those that are none.
    """
    rows = Rows(table, slots, seq_lens, extend_lens, token_starts, max_extend, page_size)
    tile = decode_tile(q, keys, values, page_size, spec) if decoding else TILE
    return _attend(
        q, keys, values, rows, spec, tile, torch.empty(q.shape, dtype=q.dtype, device=q.device), decoding, room
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step, as `invariant_attention` needs them."""

    table: Tensor
    slots: Tensor
    seq_lens: Tensor
    extend_lens: Tensor
    token_starts: Tensor
    max_extend: int
    page_size: int


def decode_tile(q: Tensor, keys: Tensor, values: Tensor, page_size: int, spec: AttentionShape) -> Tile:
    """Returns the fastest tile for decode steps. It must hold the query heads of one KV head, and give the same bits as
    TILE on this device.
    """
    if not q.is_cuda:
        return TILE
    group = spec.num_heads // spec.num_kv_heads
    kinds = (q.device, q.dtype, keys.dtype)
    key = (*kinds, group, spec.head_dim, page_size, reach_of(spec), spec.logit_cap > 0)
    if key not in _chosen:
        assert not torch.cuda.is_current_stream_capturing(), "tiles are tried out before anything is captured"
        fitting = [tile for tile in DECODE_TILES if triton.next_power_of_2(group) <= tile.lines]
        able = [tile for tile in fitting if tile == TILE or agree(TILE, tile, q, page_size, spec, keys.dtype)]
        times = {tile: _microseconds(tile, q, keys, values, page_size, spec) for tile in able}
        _chosen[key] = min(able, key=times.__getitem__, default=TILE)
        told = ", ".join(f"{tile} {times[tile]:.0f} us" for tile in able)
        logger.info("Deterministic attention of decode steps in %s uses the fastest of these tiles: %s.", q.dtype, told)
    return _chosen[key]


_chosen: dict[tuple[object, ...], Tile] = {}

TIMED_ROWS, TIMED_KEYS, TIMED_RUNS = 256, 1024, 5


def _microseconds(
    tile: Tile, like: Tensor, keys: Tensor, values: Tensor, page_size: int, spec: AttentionShape
) -> float:
    """Measures the time of a decode step of many rows that read these keys and values, whatever their content."""
    pages = max(1, min(TIMED_KEYS, len(keys)) // page_size)
    table = torch.randint(len(keys) // page_size, (TIMED_ROWS, pages), device=like.device, dtype=torch.int32)
    slots = torch.arange(TIMED_ROWS, device=like.device)
    lengths = torch.full_like(slots, pages * page_size, dtype=torch.int32)
    rows = Rows(table, slots, lengths, torch.ones_like(lengths), slots, 1, page_size)
    q = torch.zeros(TIMED_ROWS, spec.num_heads * spec.head_dim, dtype=like.dtype, device=like.device)
    times = []
    for _ in range(TIMED_RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        _attend(q, keys, values, rows, spec, tile, torch.empty_like(q), True)
        end.record()
        end.synchronize()
        times.append(1e3 * float(begin.elapsed_time(end)))
    return min(times)


TRIED_LENGTHS = (1, 2, 63, 64, 65, 130, 200, 333, 511, 512, 513, 700, 1024, 1100, 1500, 1537)
TRIED_KV_HEADS = 2


def agree(
    one: Tile, other: Tile, like: Tensor, page_size: int, spec: AttentionShape, stored: torch.dtype | None = None
) -> bool:
    """True if two tiles give the same float32 results of decode steps, for queries like these and keys and values that
    are stored in the given dtype (None: that of the queries).
    """
    draw = torch.Generator(like.device).manual_seed(26)
    lengths = torch.tensor(TRIED_LENGTHS, dtype=torch.int32, device=like.device)
    pages = -(-max(TRIED_LENGTHS) // page_size)
    table = torch.randperm(len(lengths) * pages, generator=draw, device=like.device).int().view(len(lengths), pages)
    slots = torch.arange(len(lengths), device=like.device)
    rows = Rows(table, slots, lengths, torch.ones_like(lengths), slots, 1, page_size)
    group = spec.num_heads // spec.num_kv_heads
    heads = TRIED_KV_HEADS * group
    shape = ShapeOfTrial(
        heads, TRIED_KV_HEADS, spec.head_dim, spec.scale, spec.window, spec.logit_cap, chunked=spec.chunked
    )

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, device=like.device).to(like.dtype)

    q = drawn(len(lengths), shape.num_heads * shape.head_dim)
    keys, values = (
        to_stored(drawn(table.numel() * page_size, TRIED_KV_HEADS, shape.head_dim), stored or like.dtype, 1.0)
        for _ in range(2)
    )
    found, expected = (
        _attend(q, keys, values, rows, shape, tile, torch.empty_like(q, dtype=torch.float32), True)
        for tile in (one, other)
    )
    return torch.equal(found, expected)


@dataclass(frozen=True, slots=True)
class ShapeOfTrial:
    """An AttentionShape with fewer heads, for measuring."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    logit_cap: float
    chunked: bool
    sinks: Tensor | None = None
    value_scale: float = 1.0


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Rows,
    spec: AttentionShape,
    tile: Tile,
    out: Tensor,
    decoding: bool,
    room: int = 0,
) -> Tensor:
    """Attends, writes the result to `out`, dense, and returns it."""
    tokens, heads, dim, page_size = len(q), spec.num_heads, spec.head_dim, rows.page_size
    group = heads // spec.num_kv_heads
    group_lines = triton.next_power_of_2(group)
    lines = max(tile.lines, group_lines)
    width = max(16, triton.next_power_of_2(dim))
    context = rows.table.shape[1] * page_size
    cut = invariant_cut.cut_of(len(rows.slots), context, spec.num_kv_heads, decoding=decoding)
    splits = cut.splits
    # Queries that do not begin at a tile's first place reach into one more.
    tiles = 1 if decoding else triton.cdiv(rows.max_extend, lines // group_lines) + 1
    empty = torch.zeros if room else torch.empty
    tops, totals = empty(2, tokens * heads, splits, dtype=torch.float32, device=q.device)
    parts = empty(tokens * heads, splits, dim, dtype=torch.float32, device=q.device)
    _part_kernel[(len(rows.slots), spec.num_kv_heads, tiles * cut.programs)](
        q,
        bits(keys),
        bits(values),
        rows.table,
        rows.slots,
        rows.seq_lens,
        rows.extend_lens,
        rows.token_starts,
        tops,
        totals,
        parts,
        q.stride(0),
        rows.table.stride(0),
        spec.scale,
        spec.logit_cap,
        spec.window or 0,
        spec.num_kv_heads,
        splits,
        cut.programs,
        cut.spans,
        FORMAT=format_of(keys.dtype),
        GROUP=group,
        GROUP_LINES=group_lines,
        DIM=dim,
        PAGE=page_size,
        REACH=reach_of(spec),
        CAP=spec.logit_cap > 0,
        LINES=lines,
        WIDTH=width,
        KEYS=64 if width * q.element_size() <= 256 else 32,
        SPAN=invariant_cut.SPAN,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    _join_kernel[(tokens,)](
        tops,
        totals,
        parts,
        rows.seq_lens,
        out,
        spec.sinks,
        heads,
        splits,
        spec.value_scale,
        SINKS=spec.sinks is not None,
        DIM=dim,
        HEADS=triton.next_power_of_2(heads),
        WIDTH=width,
        SPAN=invariant_cut.SPAN,
        num_warps=4,
    )
    return out
