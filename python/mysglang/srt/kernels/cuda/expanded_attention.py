"""Attention over keys and values of heads that were made of latent rows, in Triton.

    key of a head    [ made of the latent, KEY numbers | rotary part of the row, TURNED numbers, for all heads ]

A program attends with QUERIES tokens of one row in one head. Keys that all of these see need no mask. The rotary part
is read where the row has it, so that no key of a head is put together. Tiles of late tokens, which see the most keys,
come first. FlashAttention 2 (Dao, arXiv 2307.08691) describes the order of the sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.latent import Part

LN2 = 0.6931471805599453
PARTS = len(Part)
SLOT, TOKEN, NEW, FIRST, BEGIN, COUNT, AT, AGAIN, MORE = (tl.constexpr(int(field)) for field in Part)
GATHERED = 16
"""Rows that a program of `gather_rows` copies."""


@triton.jit(do_not_specialize_on_alignment=["piece"])
def _gather_kernel(
    cache,
    table,
    piece,
    out,
    table_stride,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copies ROWS rows of one part of the piece."""
    part = piece + tl.program_id(0) * PARTS
    count = tl.load(part + COUNT)
    key = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(1) * ROWS >= count:
        return
    inside = key < count
    position = tl.load(part + BEGIN) + key
    row = table + tl.load(part + SLOT).to(tl.int64) * table_stride
    page = tl.load(row + position // PAGE, mask=inside, other=0).to(tl.int64)
    source = (page * PAGE + position % PAGE) * WIDTH
    target = (tl.load(part + AT) + key).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    there = inside[:, None] & (column < WIDTH)[None, :]
    values = tl.load(cache + source[:, None] + column[None, :], mask=there, other=0)
    tl.store(out + target[:, None] + column[None, :], values, mask=there)


@triton.jit
def _attended(
    q_main,
    q_turned,
    keys,
    values,
    turned,
    at,
    count,
    begin,
    seen_by,
    highest,
    sums,
    acc,
    scale,
    turned_stride,
    MASKED: tl.constexpr,
    KEY: tl.constexpr,
    TURNED: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_WIDE: tl.constexpr,
    TURNED_WIDE: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Adds KEYS keys from number `at` of the part on to the softmax. `scale` is that of powers of two."""
    key = at + tl.arange(0, KEYS)
    k = tl.arange(0, KEY_WIDE)
    r = tl.arange(0, TURNED_WIDE)
    v = tl.arange(0, VALUE_WIDE)
    inside = key < count
    at_k = keys + key[:, None] * KEY + k[None, :]
    at_r = turned + key[:, None] * turned_stride + r[None, :]
    at_v = values + key[:, None] * VALUE + v[None, :]
    if MASKED or KEY != KEY_WIDE:
        k_main = tl.load(at_k, mask=inside[:, None] & (k < KEY)[None, :], other=0.0)
    else:
        k_main = tl.load(at_k)
    if MASKED or TURNED != TURNED_WIDE:
        k_turned = tl.load(at_r, mask=inside[:, None] & (r < TURNED)[None, :], other=0.0)
    else:
        k_turned = tl.load(at_r)
    if MASKED or VALUE != VALUE_WIDE:
        value = tl.load(at_v, mask=inside[:, None] & (v < VALUE)[None, :], other=0.0)
    else:
        value = tl.load(at_v)
    s = tl.dot(q_main, tl.trans(k_main), input_precision="ieee")
    s = tl.dot(q_turned, tl.trans(k_turned), s, input_precision="ieee")
    if MASKED:
        s = tl.where(inside[None, :] & ((begin + key)[None, :] <= seen_by[:, None]), s, float("-inf"))
    top = tl.maximum(highest, tl.max(s, 1) * scale)
    # A query that has seen no key yet would compare -inf with -inf.
    base = tl.where(top == float("-inf"), 0.0, top) if MASKED else top
    p = tl.exp2(s * scale - base[:, None])
    shrink = tl.exp2(highest - base)
    sums = sums * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(value.dtype), value, acc * shrink[:, None], input_precision="ieee")
    return top, sums, acc


@triton.jit(do_not_specialize=["total"], do_not_specialize_on_alignment=["piece"])
def _heads_attend_kernel(
    q,
    keys,
    values,
    turned,
    piece,
    out,
    out_sums,
    out_lse,
    q_stride,
    q_head_stride,
    turned_stride,
    total,
    scale,
    PARTS: tl.constexpr,
    KEY: tl.constexpr,
    TURNED: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_WIDE: tl.constexpr,
    TURNED_WIDE: tl.constexpr,
    VALUE_WIDE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attends with a tile of one row's tokens in one head, over the row's keys in the piece."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    part = piece + tl.program_id(2) * PARTS
    new = tl.load(part + NEW)
    if tile * QUERIES >= new:
        return
    first, begin, count, at = tl.load(part + FIRST), tl.load(part + BEGIN), tl.load(part + COUNT), tl.load(part + AT)
    again = tl.load(part + AGAIN) != 0
    query = tile * QUERIES + tl.arange(0, QUERIES)
    live = query < new
    token = (tl.load(part + TOKEN) + query).to(tl.int64)
    seen_by = first + query
    k = tl.arange(0, KEY_WIDE)
    r = tl.arange(0, TURNED_WIDE)
    v = tl.arange(0, VALUE_WIDE)
    at_q = q + token[:, None] * q_stride + head * q_head_stride
    q_main = tl.load(at_q + k[None, :], mask=live[:, None] & (k < KEY)[None, :], other=0.0)
    q_turned = tl.load(at_q + KEY + r[None, :], mask=live[:, None] & (r < TURNED)[None, :], other=0.0)
    keys += (head.to(tl.int64) * total + at) * KEY
    values += (head.to(tl.int64) * total + at) * VALUE
    turned += at.to(tl.int64) * turned_stride

    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    sums = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, VALUE_WIDE), tl.float32)
    # The first query of the tile sees the fewest keys, the last live one the most.
    seen = tl.minimum(count, first + tl.minimum(tile * QUERIES + QUERIES, new) - begin)
    all_see = tl.maximum(tl.minimum(count, first + tile * QUERIES + 1 - begin), 0) // KEYS * KEYS
    for start in tl.range(0, all_see, KEYS):
        highest, sums, acc = _attended(
            q_main,
            q_turned,
            keys,
            values,
            turned,
            start,
            count,
            begin,
            seen_by,
            highest,
            sums,
            acc,
            scale,
            turned_stride,
            False,
            KEY,
            TURNED,
            VALUE,
            KEY_WIDE,
            TURNED_WIDE,
            VALUE_WIDE,
            KEYS,
        )
    for start in tl.range(all_see, seen, KEYS):
        highest, sums, acc = _attended(
            q_main,
            q_turned,
            keys,
            values,
            turned,
            start,
            count,
            begin,
            seen_by,
            highest,
            sums,
            acc,
            scale,
            turned_stride,
            True,
            KEY,
            TURNED,
            VALUE,
            KEY_WIDE,
            TURNED_WIDE,
            VALUE_WIDE,
            KEYS,
        )
    acc = acc / tl.maximum(sums, 1e-30)[:, None]
    lse = tl.where(sums > 0, highest + tl.log2(tl.maximum(sums, 1e-30)), float("-inf"))

    place = token * heads + head
    at_out = place[:, None] * VALUE + v[None, :]
    written = live[:, None] & (v < VALUE)[None, :]
    if again:
        before = tl.load(out_lse + place, mask=live, other=0.0) * 1.4426950408889634
        most = tl.maximum(lse, before)
        own, other = tl.exp2(lse - most), tl.exp2(before - most)
        both = own + other
        earlier = tl.load(out_sums + at_out, mask=written, other=0.0)
        acc = acc * (own / both)[:, None] + earlier * (other / both)[:, None]
        lse = most + tl.log2(both)
    if tl.load(part + MORE) != 0:
        tl.store(out_sums + at_out, acc, mask=written)
    else:
        tl.store(out + at_out, acc, mask=written)
    tl.store(out_lse + place, lse * 0.6931471805599453, mask=live)


def gather_rows(cache: Tensor, table: Tensor, piece: Tensor, keys: int, most_keys: int, page_size: int) -> Tensor:
    """Implements the op `gather_rows`. `kernels/latent.py` describes its arguments and result."""
    width = cache.shape[-1]
    out = cache.new_empty(keys, width)
    _gather_kernel[(len(piece), triton.cdiv(most_keys, GATHERED))](
        *(cache, table, piece, out, table.stride(0)),
        WIDTH=width,
        PAGE=page_size,
        PARTS=PARTS,
        ROWS=GATHERED,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8,
    )
    return out


def attend_to_heads(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    turned: Tensor,
    piece: Tensor,
    most_new: int,
    scale: float,
    out: Tensor,
    sums: Tensor,
    lse: Tensor,
) -> None:
    """Implements the op `attend_to_heads`. `kernels/latent.py` describes its arguments."""
    assert keys.is_contiguous() and values.is_contiguous() and out.is_contiguous() and lse.is_contiguous()
    assert q.stride(2) == turned.stride(1) == 1
    heads, total, key_dim = keys.shape
    turned_dim, value_dim = turned.shape[1], values.shape[2]
    sizes = tile_of(q.dtype)
    _heads_attend_kernel[(triton.cdiv(most_new, sizes["QUERIES"]), heads, len(piece))](
        *(q, keys, values, turned, piece, out, sums, lse),
        *(q.stride(0), q.stride(1), turned.stride(0), total, scale / LN2),
        PARTS=PARTS,
        KEY=key_dim,
        TURNED=turned_dim,
        VALUE=value_dim,
        KEY_WIDE=_wide(key_dim),
        TURNED_WIDE=_wide(turned_dim),
        VALUE_WIDE=_wide(value_dim),
        **sizes,
    )


def tile_of(dtype: torch.dtype) -> dict[str, int]:
    """Returns how many queries and keys a program takes at once, and its warps and stages."""
    if dtype.itemsize == 2:
        return {"QUERIES": 128, "KEYS": 64, "num_warps": 8, "num_stages": 3}
    return {"QUERIES": 32, "KEYS": 32, "num_warps": 4, "num_stages": 1}


def _wide(dim: int) -> int:
    return max(16, int(triton.next_power_of_2(dim)))
