"""Paged attention over latent rows in Triton: decode steps and steps with new tokens.

    row of a token    [ latent, LATENT numbers | rotary part, TURNED numbers ]     key: all of it; value: the latent

All heads of all new tokens of a row of the batch are queries of one key-value head, so a program reads keys once for as
many of them as fit into a tile. For DeepSeek-V2-Lite these are the 16 heads of a decoding row. The latent part of a key
is read once, for the scores and for the sum. Everything else works as in `attention.py` beside this.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.attention import _join_kernel, _kv_slots
from mysglang.srt.kernels.cuda.overlap import overlapping

KEYS = 32
"""Keys that a program reads at once."""
DECODE_KEYS = 64
"""Keys that a program of a decode step reads at once, where its keys are that many. The matrix instructions of a tile
wait for one another, and so do its warps, whatever the number of keys is. At the sizes of DeepSeek (512 and 64) the
program takes 92 KiB of shared memory.
"""
DECODE_QUERIES, EXTEND_QUERIES = 16, 32
"""Queries of a program."""

SPLITS = (4, 64), (24, 16), (48, 8), (96, 4)
"""Tiles of queries in a step at most, and the splits of each row's keys then."""
FEWEST_SPLITS = 2
MANY_SPLITS = 64
"""Splits from which most have so few keys that DECODE_KEYS would be too many."""


class LatentShape(Protocol):
    """Facts about a layer that the kernel needs (forward.forward_batch.AttentionSpec)."""

    @property
    def num_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def scale(self) -> float: ...


@triton.jit
def _latent_kernel(
    q,
    rows,
    table,
    slots,
    seq_lens,
    extend_lens,
    token_starts,
    out,
    out_lse,
    q_stride,
    table_stride,
    scale,
    heads,
    DECODE: tl.constexpr,
    LATENT: tl.constexpr,
    TURNED: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    QUERIES: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    TURNED_WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Attends with a tile of one row's queries, heads of a token side by side, over one split of the keys that they
    see.

    With one split the result is written; with several, a partial result and its log-sum-exp.
    """
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    split = tl.program_id(2)
    new = 1
    first_token = row
    if not DECODE:
        new = tl.load(extend_lens + row)
        first_token = tl.load(token_starts + row)
    if tile * QUERIES >= new * heads:
        return
    seq_len = tl.load(seq_lens + row)
    query = tile * QUERIES + tl.arange(0, QUERIES)
    token = query // heads
    head = query % heads
    live = token < new
    positions_q = seq_len - new + token
    # Keys up to the position of the tile's last token, which sees the most; splits are whole tiles of keys.
    last = tl.minimum((tile * QUERIES + QUERIES - 1) // heads, new - 1)
    seen = seq_len - new + last + 1
    span = tl.cdiv(tl.cdiv(seen, SPLITS), KEYS) * KEYS
    begin = split * span
    end = tl.minimum(begin + span, seen)

    c = tl.arange(0, LATENT_WIDTH)
    r = tl.arange(0, TURNED_WIDTH)
    at_q = q + (first_token + token)[:, None] * q_stride + head[:, None] * (LATENT + TURNED)
    q_latent = tl.load(at_q + c[None, :], mask=live[:, None] & (c < LATENT)[None, :], other=0.0)
    q_turned = tl.load(at_q + LATENT + r[None, :], mask=live[:, None] & (r < TURNED)[None, :], other=0.0)
    row_table = table + tl.load(slots + row) * table_stride

    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    sums = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, LATENT_WIDTH), tl.float32)
    for at in tl.range(begin, end, KEYS):
        positions = at + tl.arange(0, KEYS)
        inside = positions < end
        at_row = rows + (_kv_slots(row_table, positions, inside, PAGE) * (LATENT + TURNED))[:, None]
        latent = tl.load(at_row + c[None, :], mask=inside[:, None] & (c < LATENT)[None, :], other=0.0)
        turned = tl.load(at_row + LATENT + r[None, :], mask=inside[:, None] & (r < TURNED)[None, :], other=0.0)
        s = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        s += tl.dot(q_turned, tl.trans(turned), input_precision="ieee")
        visible = inside[None, :] & (positions[None, :] <= positions_q[:, None])
        s = tl.where(visible, s * (scale * 1.4426950408889634), float("-inf"))
        top = tl.maximum(highest, tl.max(s, 1))
        # A query that has seen no key yet would compare -inf with -inf.
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(highest - base)
        sums = sums * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(latent.dtype), latent, input_precision="ieee")
        highest = top
    acc = acc / tl.maximum(sums, 1e-30)[:, None]
    place = ((first_token + token) * heads + head) * SPLITS + split
    tl.store(out + place[:, None] * LATENT + c[None, :], acc, mask=live[:, None] & (c < LATENT)[None, :])
    if SPLITS > 1:
        # An empty split stays at -inf and weighs nothing.
        lse = tl.where(sums > 0, highest + tl.log2(tl.maximum(sums, 1e-30)), float("-inf"))
        tl.store(out_lse + place, lse, mask=live)


def latent_decode_attention(
    q: Tensor,
    rows: Tensor,
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    page_size: int,
    spec: LatentShape,
) -> Tensor:
    """Attends with one new token in each row. q: [R, num_heads * head_dim]; rows: [KV slots, 1, head_dim]. Returns [R,
    num_heads * value_dim].
    """
    count = len(slots) * spec.num_heads
    tiles = triton.cdiv(spec.num_heads, DECODE_QUERIES)
    splits = splits_of(len(slots) * tiles)
    partial = torch.empty(count, splits, spec.value_dim, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty(count, splits, dtype=torch.float32, device=q.device)
    _latent_kernel[(len(slots), tiles, splits)](
        q,
        rows,
        table,
        slots,
        seq_lens,
        seq_lens,
        seq_lens,
        partial,
        partial_lse,
        q.stride(0),
        table.stride(0),
        spec.scale,
        spec.num_heads,
        DECODE=True,
        SPLITS=splits,
        QUERIES=DECODE_QUERIES,
        num_warps=4,
        num_stages=2,
        **_sizes(spec, page_size, rows.dtype, KEYS if splits >= MANY_SPLITS else DECODE_KEYS),
        **overlapping(q),
    )
    out = torch.empty(len(q), spec.num_heads * spec.value_dim, dtype=q.dtype, device=q.device)
    _join_kernel[(count,)](
        partial,
        partial_lse,
        out,
        None,
        spec.num_heads,
        1.0,
        SINKS=False,
        DIM=spec.value_dim,
        SPLITS=splits,
        WIDTH=triton.next_power_of_2(spec.value_dim),
        num_warps=max(2, splits // 8),
        **overlapping(q),
    )
    return out


def splits_of(programs: int) -> int:
    """Returns into how many splits a row's keys are cut, for a step of that many tiles of queries.

    There are enough to fill the device, and never one, since a row may be much longer than the others. Each split
    writes float32 sums for its heads, which are read again. At the sizes of DeepSeek, those of 16 heads take as many
    bytes as 57 keys.
    """
    return next((splits for most, splits in SPLITS if programs <= most), FEWEST_SPLITS)


def latent_extend_attention(
    q: Tensor,
    rows: Tensor,
    table: Tensor,
    slots: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    token_starts: Tensor,
    max_extend: int,
    page_size: int,
    spec: LatentShape,
    *,
    room: int = 0,
) -> Tensor:
    """Attends with any number of new tokens in each row, which begin at token_starts [R] int64.

    Otherwise as decoding. room: rows have space for so many tokens; those that hold no token become zeros.
    """
    empty = torch.zeros if room else torch.empty
    out = empty(len(q), spec.num_heads * spec.value_dim, dtype=q.dtype, device=q.device)
    _latent_kernel[(len(slots), triton.cdiv(max_extend * spec.num_heads, EXTEND_QUERIES), 1)](
        q,
        rows,
        table,
        slots,
        seq_lens,
        extend_lens,
        token_starts,
        out,
        out,
        q.stride(0),
        table.stride(0),
        spec.scale,
        spec.num_heads,
        DECODE=False,
        SPLITS=1,
        QUERIES=EXTEND_QUERIES,
        OVERLAP=False,
        num_warps=8,
        num_stages=2,
        **_sizes(spec, page_size, rows.dtype, KEYS),
    )
    return out


def _sizes(spec: LatentShape, page_size: int, dtype: torch.dtype, keys: int) -> dict[str, int]:
    turned = spec.head_dim - spec.value_dim
    return {
        "LATENT": spec.value_dim,
        "TURNED": turned,
        "PAGE": page_size,
        "LATENT_WIDTH": max(16, triton.next_power_of_2(spec.value_dim)),
        "TURNED_WIDTH": max(16, triton.next_power_of_2(turned)),
        "KEYS": keys if dtype.itemsize == 2 else KEYS // 2,
    }
