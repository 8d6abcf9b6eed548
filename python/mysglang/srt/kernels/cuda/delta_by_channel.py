"""The gated delta rule with a decay for each channel of the key, for many tokens of some rows, in Triton.

chunks (head, chunk)          what tokens write, take and see, for all chunks at the same time
runs   (values, head, row)    takes a row's states from chunk to chunk

The formulas are in `kernels/delta_rule.py`. How much token i sees of token j is the sum over channels d of
x_id exp(l_id - l_jd) k_jd, where l is the logarithm of the decay since the beginning of the chunk. A product of
matrices needs this exponential as a factor for i times a factor for j, and neither may exceed 1. So each pair takes a
border between its two tokens: exp(l_i - l_border) exp(l_border - l_j). Blocks of 2, 4, … CHUNK tokens are halved:

    block of 8     x x x x | x x x x      16 pairs: rows are the tokens behind the border, columns those before it
    blocks of 4    x x | x x   x x | x x  2 times 4 pairs
    blocks of 2    x|x   x|x   x|x   x|x  4 times 1 pair

The border of a pair lies in blocks of one size only. The rows of all blocks of a size are half of the tokens, and the
columns are the other half. So one product of tiles computes all pairs of a size; what it gives for rows and columns of
different blocks is not stored.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.cuda.state_space import launch_turns, tile, warps
from mysglang.srt.kernels.cuda.triangular import SOLVERS, invert
from mysglang.srt.kernels.delta_rule import NORM_EPS
from mysglang.srt.kernels.states import CHUNK, Runs

CHUNK_WARPS = 4
"""Warps of a chunk. All its tiles have half a chunk as rows, which Triton multiplies with `mma.sync`: see
`state_space.warps`.
"""
CHUNK_REGISTERS = 168
"""Registers of a thread of a chunk, of which three programs of four warps fit on a multiprocessor. Without a limit it
takes 239.
"""
PART = 64
"""Channels of a tile."""
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _channels(pointer, stride, token, first, WIDTH: tl.constexpr, PART: tl.constexpr):
    """Loads PART channels of some tokens from the first one on: [tokens, PART] float32. Those from WIDTH on are 0."""
    channel = first + tl.arange(0, PART)[None, :]
    if WIDTH % PART == 0:
        found = tl.load(pointer + token[:, None] * stride + channel)
    else:
        found = tl.load(pointer + token[:, None] * stride + channel, mask=channel < WIDTH, other=0.0)
    return found.to(tl.float32)


@triton.jit
def _strengths(b, stride, token, count, STRONGEST: tl.constexpr):
    """Loads the strengths of some tokens; those from count on have none."""
    found = tl.load(b + token * stride, mask=token < count, other=0.0).to(tl.float32)
    return tl.where(token < count, STRONGEST * tl.sigmoid(found), 0.0)


@triton.jit
def _softplus(x):
    """Computes log2(1 + 2^x) with a relative error of 4e-7, also where it is small.

    log2(1 + s) / s on [0, 1] is a polynomial of degree 7, fitted for the least relative error. Triton's logarithms take
    twenty instructions and lose the digits of a small s.
    """
    small = tl.exp2(-tl.abs(x))
    log = small * -0.0123190332 + 0.0636063473
    log = small * log - 0.155349742
    log = small * log + 0.25600826
    log = small * log - 0.353394315
    log = small * log + 0.480063611
    log = small * log - 0.721310083
    log = small * log + 1.44269476
    return tl.maximum(x, 0.0) + small * log


@triton.jit(do_not_specialize=["tokens"])
def _channel_chunk_kernel(
    q,
    k,
    v,
    a,
    b,
    log_rate,
    time_bias,
    cuts,
    chunks,
    written,
    taken,
    inside,
    asked,
    kept,
    since,
    lengths,
    system,
    q_stride,
    k_stride,
    v_stride,
    a_stride,
    b_stride,
    tokens,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    PART: tl.constexpr,
    STRONGEST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Computes what the tokens of one chunk write and how they see each other, before states are known.

    written: [T, HEADS, VALUE_DIM]. taken: [T, HEADS, KEY_DIM]. inside: [T, HEADS, CHUNK], how much a token sees of what
    each token of its chunk writes. asked: [T, HEADS, KEY_DIM], queries times the decay from the chunk's beginning on.
    kept: [T, HEADS, KEY_DIM], keys times the decay up to the chunk's end. since: [T, HEADS, KEY_DIM] float32, the
    logarithm to base 2 of the decay from the chunk's beginning on.

    Scratch space: lengths [2, T, HEADS] float32, factors that give keys and queries their lengths. system [T, HEADS,
    CHUNK] float32, how much a key sees of each key before it.
    """
    HALF: tl.constexpr = CHUNK // 2
    KEY_STRIDE: tl.constexpr = HEADS * KEY_DIM
    VALUE_STRIDE: tl.constexpr = HEADS * VALUE_DIM
    SUMS: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    head = tl.program_id(0)
    begin = tl.load(chunks + tl.program_id(1) * 2)
    end = tl.load(cuts + tl.load(chunks + tl.program_id(1) * 2 + 1) * 5 + 1)
    if begin >= end:
        return
    count = tl.minimum(end - begin, CHUNK)
    # Tokens behind the last one are read as the last one. What is computed of them is not stored, and no other token
    # sees them.
    most = count - 1
    i = tl.arange(0, HALF)
    # All pointers to tokens are at this head and the first token of the chunk.
    token = begin.to(tl.int64)
    place = token * HEADS + head
    q += token * q_stride + (head // SHARED) * KEY_DIM
    k += token * k_stride + (head // SHARED) * KEY_DIM
    v += token * v_stride + head * VALUE_DIM
    a += token * a_stride + head * KEY_DIM
    b += token * b_stride + head
    written += place * VALUE_DIM
    taken += place * KEY_DIM
    asked += place * KEY_DIM
    kept += place * KEY_DIM
    since += place * KEY_DIM
    inside += place * CHUNK
    system += place * CHUNK
    key_lengths = lengths + place
    query_lengths = key_lengths + tokens.to(tl.int64) * HEADS

    # 1. Lengths and decays, for each half of the chunk.
    rate = tl.exp(tl.load(log_rate + head))
    ones = tl.where(i[:, None] >= i[None, :], 1.0, 0.0)
    column = tl.arange(0, CHUNK)[None, :]
    # Addresses of all parts in registers would leave too few for the rest.
    for start in tl.range(0, count, HALF, disable_licm=True):
        row = start + i
        exists = row < count
        read = tl.minimum(row, most)
        of_key = tl.zeros((HALF,), tl.float32)
        of_query = of_key
        own = of_key
        for part in range(0, KEY_DIM, PART):
            keys = _channels(k, k_stride, read, part, KEY_DIM, PART)
            queries = _channels(q, q_stride, read, part, KEY_DIM, PART)
            of_key += tl.sum(keys * keys, axis=1)
            of_query += tl.sum(queries * queries, axis=1)
            own += tl.sum(queries * keys, axis=1)
        of_key = tl.rsqrt(of_key + eps)
        of_query = tl.rsqrt(of_query + eps) * KEY_DIM**-0.5
        tl.store(key_lengths + row * HEADS, of_key, mask=exists)
        tl.store(query_lengths + row * HEADS, of_query, mask=exists)
        seen = tl.where(row[:, None] == column, (own * of_query * of_key)[:, None], 0.0)
        tl.store(inside + row[:, None] * (HEADS * CHUNK) + column, seen, mask=exists[:, None])
        for part in range(0, KEY_DIM, PART):
            channel = part + tl.arange(0, PART)
            known = channel < KEY_DIM
            shift = tl.load(time_bias + head * KEY_DIM + channel, mask=known, other=0.0) * LOG2E
            decay = -rate * _softplus(_channels(a, a_stride, read, part, KEY_DIM, PART) * LOG2E + shift[None, :])
            before = tl.load(since + (start - 1) * KEY_STRIDE + channel, mask=known & (start > 0), other=0.0)
            # A product, as Triton's cumulative sums take twice as many instructions.
            total = tl.dot(ones, decay, input_precision=SUMS) + before[None, :]
            spot = row[:, None] * KEY_STRIDE + channel[None, :]
            some = exists[:, None] & known[None, :]
            tl.store(since + spot, total, mask=some)
            asking = _channels(q, q_stride, read, part, KEY_DIM, PART) * of_query[:, None]
            tl.store(asked + spot, asking * tl.exp2(total), mask=some)
        # Other threads read what is written here.
        tl.debug_barrier()

    # 2. Pairs of tokens: a level for each size of the blocks.
    level = 0
    while (1 << level) < count:
        block = i >> level
        left = i + (block << level)
        right = left + (1 << level)
        border = tl.minimum(left | ((1 << level) - 1), most)
        first = tl.minimum(left, most)
        second = tl.minimum(right, most)
        # Factors that depend on places also keep Triton from computing decays in each warp that multiplies them.
        of_left = tl.where(left < count, tl.load(key_lengths + first * HEADS), 0.0)[:, None]
        of_right = tl.where(right < count, tl.load(key_lengths + second * HEADS), 0.0)[:, None]
        of_query = tl.where(right < count, tl.load(query_lengths + second * HEADS), 0.0)[:, None]
        by_key = tl.zeros((HALF, HALF), tl.float32)
        by_query = by_key
        for part in range(0, KEY_DIM, PART):
            at_border = _channels(since, KEY_STRIDE, border, part, KEY_DIM, PART)
            decay = tl.exp2(at_border - _channels(since, KEY_STRIDE, first, part, KEY_DIM, PART))
            keys = _channels(k, k_stride, first, part, KEY_DIM, PART) * of_left
            early = tl.trans((keys * decay).to(k.dtype.element_ty))
            decay = tl.exp2(_channels(since, KEY_STRIDE, second, part, KEY_DIM, PART) - at_border)
            keys = _channels(k, k_stride, second, part, KEY_DIM, PART) * of_right
            by_key = tl.dot((keys * decay).to(k.dtype.element_ty), early, by_key, input_precision="ieee")
            queries = _channels(q, q_stride, second, part, KEY_DIM, PART) * of_query
            by_query = tl.dot((queries * decay).to(k.dtype.element_ty), early, by_query, input_precision="ieee")
        pair = right[:, None] * (HEADS * CHUNK) + left[None, :]
        same = (right < count)[:, None] & (block[:, None] == block[None, :])
        tl.store(system + pair, by_key, mask=same)
        tl.store(inside + pair, by_query, mask=same)
        level += 1
    tl.debug_barrier()

    # 3. The inverse of the triangular system, times strengths, in blocks of half a chunk: [upper 0; corner lower].
    entry = i[:, None] * (HEADS * CHUNK) + i[None, :]
    below = i[:, None] > i[None, :]
    strength = _strengths(b, b_stride, i, count, STRONGEST)
    block = tl.load(system + entry, mask=below & (i < count)[:, None], other=0.0) * strength[:, None]
    inverse = invert(block, HALF, PRECISION)
    upper = (inverse * strength[None, :]).to(k.dtype.element_ty)
    corner = tl.zeros((HALF, HALF), k.dtype.element_ty)
    lower = corner
    if count > HALF:
        entry += HALF * HEADS * CHUNK
        some = (HALF + i < count)[:, None]
        strong = _strengths(b, b_stride, HALF + i, count, STRONGEST)
        block = tl.load(system + entry + HALF, mask=below & some, other=0.0) * strong[:, None]
        other = invert(block, HALF, PRECISION)
        lower = (other * strong[None, :]).to(k.dtype.element_ty)
        # As in `invert`, of blocks of this size.
        block = tl.load(system + entry, mask=some, other=0.0) * strong[:, None]
        if PRECISION == "fp16":
            block = tl.dot(other.to(tl.float16), block.to(tl.float16))
            block = tl.dot(block.to(tl.float16), inverse.to(tl.float16))
        else:
            block = tl.dot(other, block, input_precision=PRECISION)
            block = tl.dot(block, inverse, input_precision=PRECISION)
        corner = (block * -strength[None, :]).to(k.dtype.element_ty)

    # 4. What the tokens take of the state, and write: that inverse times their decayed keys and their values.
    first = tl.minimum(i, most)
    second = tl.minimum(HALF + i, most)
    is_first = i < count
    is_second = HALF + i < count
    of_first = tl.where(is_first, tl.load(key_lengths + first * HEADS), 0.0)[:, None]
    of_second = tl.where(is_second, tl.load(key_lengths + second * HEADS), 0.0)[:, None]
    for part in range(0, KEY_DIM, PART):
        channel = part + tl.arange(0, PART)[None, :]
        known = channel < KEY_DIM
        last = tl.load(since + most * KEY_STRIDE + channel, mask=known, other=0.0)
        spot = i[:, None] * KEY_STRIDE + channel
        some = is_first[:, None] & known
        keys = _channels(k, k_stride, first, part, KEY_DIM, PART) * of_first
        total = _channels(since, KEY_STRIDE, first, part, KEY_DIM, PART)
        tl.store(kept + spot, keys * tl.exp2(last - total), mask=some)
        early = (keys * tl.exp2(total)).to(k.dtype.element_ty)
        tl.store(taken + spot, tl.dot(upper, early, input_precision="ieee"), mask=some)
        if count > HALF:
            spot += HALF * KEY_STRIDE
            some = is_second[:, None] & known
            keys = _channels(k, k_stride, second, part, KEY_DIM, PART) * of_second
            total = _channels(since, KEY_STRIDE, second, part, KEY_DIM, PART)
            tl.store(kept + spot, keys * tl.exp2(last - total), mask=some)
            late = (keys * tl.exp2(total)).to(k.dtype.element_ty)
            found = tl.dot(lower, late, tl.dot(corner, early, input_precision="ieee"), input_precision="ieee")
            tl.store(taken + spot, found, mask=some)
    for part in range(0, VALUE_DIM, PART):
        channel = part + tl.arange(0, PART)[None, :]
        known = channel < VALUE_DIM
        spot = i[:, None] * VALUE_STRIDE + channel
        early = _channels(v, v_stride, first, part, VALUE_DIM, PART).to(k.dtype.element_ty)
        tl.store(written + spot, tl.dot(upper, early, input_precision="ieee"), mask=is_first[:, None] & known)
        if count > HALF:
            late = _channels(v, v_stride, second, part, VALUE_DIM, PART).to(k.dtype.element_ty)
            found = tl.dot(lower, late, tl.dot(corner, early, input_precision="ieee"), input_precision="ieee")
            tl.store(written + spot + HALF * VALUE_STRIDE, found, mask=is_second[:, None] & known)


# The rows of a later turn begin anywhere in their table.
@triton.jit(do_not_specialize_on_alignment=["rows"])
def _channel_runs_kernel(
    written,
    taken,
    inside,
    asked,
    kept,
    since,
    matrix,
    cuts,
    rows,
    out,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Applies a row's chunks in their order to VALUES columns of one head's state."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    first = tl.load(rows + row)
    if tl.load(cuts + first * 5) >= tl.load(cuts + first * 5 + 1):
        return
    i = tl.arange(0, CHUNK)
    dk = tl.arange(0, KEYS)
    dv = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    # States are held with the values first: see `_delta_runs_kernel`.
    some = (dv < VALUE_DIM)[:, None] & (dk < KEY_DIM)[None, :]
    size = HEADS * KEY_DIM * VALUE_DIM
    tile = matrix + (head * KEY_DIM + dk)[None, :] * VALUE_DIM + dv[:, None]
    own = tl.load(cuts + first * 5 + 3).to(tl.int64) * size
    state = tl.load(tile + own, mask=some, other=0.0).to(tl.float32)
    for number in range(first, tl.load(rows + row + 1)):
        start = tl.load(cuts + number * 5)
        end = tl.load(cuts + number * 5 + 1)
        for begin in range(start, end, CHUNK):
            token = (begin + i).to(tl.int64)
            exists = token < end
            some_keys = exists[:, None] & (dk < KEY_DIM)[None, :]
            some_values = (dv < VALUE_DIM)[:, None] & exists[None, :]
            place = token * HEADS + head
            channel = place[:, None] * KEY_DIM + dk[None, :]
            last = (tl.minimum(begin + CHUNK, end) - 1).to(tl.int64) * HEADS + head
            takes = tl.load(taken + channel, mask=some_keys, other=0.0)
            new = tl.load(written + place[None, :] * VALUE_DIM + dv[:, None], mask=some_values, other=0.0)
            queries = tl.load(asked + channel, mask=some_keys, other=0.0)
            seen = tl.load(inside + place[:, None] * CHUNK + i[None, :], mask=exists[:, None], other=0.0)
            keys = tl.load(kept + channel, mask=some_keys, other=0.0)
            whole = tl.load(since + last * KEY_DIM + dk, mask=dk < KEY_DIM, other=0.0)
            before = state.to(takes.dtype)
            added = new.to(tl.float32) - tl.dot(before, tl.trans(takes), input_precision="ieee")
            added = added.to(keys.dtype)
            state = state * tl.exp2(whole)[None, :] + tl.dot(added, keys, input_precision="ieee")
            read = tl.dot(before, tl.trans(queries), input_precision="ieee")
            read += tl.dot(added, tl.trans(seen), input_precision="ieee")
            tl.store(out + place[None, :] * VALUE_DIM + dv[:, None], read, mask=some_values)
        checkpoint = tl.load(cuts + number * 5 + 4).to(tl.int64)
        tl.store(tile + checkpoint * size, state, mask=some & (checkpoint >= 0))
    tl.store(tile + own, state, mask=some)


def delta_runs_by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_rate: Tensor,
    time_bias: Tensor,
    matrix: Tensor,
    runs: Runs,
    strongest: float = 1.0,
) -> Tensor:
    """Implements `delta_runs` of `kernels/delta_rule.py` for decays by channel. Rows of all inputs may lie in
    wider ones; their heads are side by side.
    """
    tokens, heads, value_dim = v.shape
    key_dim, dtype, device = q.shape[2], v.dtype, v.device
    out, written = (torch.empty(v.shape, dtype=dtype, device=device) for _ in range(2))
    taken, asked, kept = (torch.empty(tokens, heads, key_dim, dtype=dtype, device=device) for _ in range(3))
    inside = torch.empty(tokens, heads, CHUNK, dtype=dtype, device=device)
    since, system, lengths = (
        torch.empty(shape, dtype=torch.float32, device=device)
        for shape in ((tokens, heads, key_dim), (tokens, heads, CHUNK), (2, tokens, heads))
    )
    sizes = {"HEADS": heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim, "CHUNK": CHUNK}
    _channel_chunk_kernel[(heads, len(runs.chunks))](
        q,
        k,
        v,
        a,
        b,
        log_rate,
        time_bias,
        runs.cuts,
        runs.chunks,
        written,
        taken,
        inside,
        asked,
        kept,
        since,
        lengths,
        system,
        *(each.stride(0) for each in (q, k, v, a, b)),
        tokens,
        NORM_EPS,
        **sizes,
        SHARED=heads // q.shape[1],
        PART=PART,
        STRONGEST=strongest,
        PRECISION=SOLVERS[dtype],
        num_warps=CHUNK_WARPS,
        num_stages=1,
        maxnreg=CHUNK_REGISTERS,
    )
    constants = {**sizes, "KEYS": tile(key_dim), "num_warps": warps(tile(key_dim)), "num_stages": 1}

    def arguments(numbers: Tensor) -> tuple[Any, ...]:
        return written, taken, inside, asked, kept, since, matrix, runs.turns, numbers, out

    launch_turns(_channel_runs_kernel, runs, heads, value_dim, arguments, constants, "VALUES")
    return out
