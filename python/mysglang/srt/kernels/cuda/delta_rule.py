"""The gated delta rule in Triton. The formulas are in `kernels/delta_rule.py`.

step   (row, value head, values)   the state [key_dim, values] is read once and written once
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.delta_by_channel import delta_runs_by_channel
from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.cuda.state_space import launch_turns, softplus, tile, warps
from mysglang.srt.kernels.cuda.triangular import SOLVERS, invert
from mysglang.srt.kernels.delta_rule import NORM_EPS, GatedNorm, through
from mysglang.srt.kernels.states import CHUNK, Runs

STEP_VALUES = 32
"""Columns of a state that a program of a step updates: 128 bytes of each of its rows."""
STEP_WARPS, CHUNK_WARPS = 2, 4


@triton.jit
def _add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit(do_not_specialize=["absent"])
def _delta_step_kernel(
    q,
    k,
    v,
    a,
    b,
    log_rate,
    time_bias,
    matrix,
    at,
    out,
    q_stride,
    k_stride,
    v_stride,
    a_stride,
    b_stride,
    absent,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    STRONGEST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Updates VALUES columns of one head's state with one new token of a row. absent: the entry of rows without a
    state. BY_CHANNEL: each channel of the key has a decay of its own. STRONGEST: upper bound of strengths.
    """
    if OVERLAP:
        gdc_launch_dependents()
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    rate = tl.exp(tl.load(log_rate + head))
    dk = tl.arange(0, KEYS)
    if BY_CHANNEL:
        shift = tl.load(time_bias + head * KEY_DIM + dk, mask=dk < KEY_DIM, other=0.0)
    else:
        shift = tl.load(time_bias + head)
    dv = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    inside = (dk < KEY_DIM)[:, None] & (dv < VALUE_DIM)[None, :]
    if OVERLAP:
        gdc_wait()
    target = out + (row * HEADS + head) * VALUE_DIM + dv
    entry = tl.load(at + row)
    if entry == absent:
        tl.store(target, tl.zeros((VALUES,), tl.float32), mask=dv < VALUE_DIM)
        return
    place = matrix + ((entry * HEADS + head) * KEY_DIM + dk)[:, None] * VALUE_DIM + dv[None, :]
    state = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    within = (head // SHARED) * KEY_DIM + dk
    query = tl.load(q + row * q_stride + within, mask=dk < KEY_DIM, other=0.0).to(tl.float32)
    key = tl.load(k + row * k_stride + within, mask=dk < KEY_DIM, other=0.0).to(tl.float32)
    value = tl.load(v + row * v_stride + head * VALUE_DIM + dv, mask=dv < VALUE_DIM, other=0.0).to(tl.float32)
    of_query, of_key, shared = tl.reduce((query * query, key * key, key * query), 0, _add_three)
    of_query = tl.rsqrt(of_query + eps) * KEY_DIM**-0.5
    of_key = tl.rsqrt(of_key + eps)
    if BY_CHANNEL:
        time = tl.load(a + row * a_stride + head * KEY_DIM + dk, mask=dk < KEY_DIM, other=0.0).to(tl.float32)
        kept = tl.exp(-rate * softplus(time + shift))[:, None]
    else:
        kept = tl.exp(-rate * softplus(tl.load(a + row * a_stride + head).to(tl.float32) + shift))
    strength = STRONGEST * tl.sigmoid(tl.load(b + row * b_stride + head).to(tl.float32))
    state = state * kept
    # Both read the state before the token writes to it; what the query finds of the new value is added as (k q) u.
    said, read = tl.reduce((state * key[:, None], state * query[:, None]), 0, _add_two)
    new = (value - said * of_key) * (strength * of_key)
    tl.store(place, state + key[:, None] * new[None, :], mask=inside)
    tl.store(target, (read + shared * new) * of_query, mask=dv < VALUE_DIM)


def delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_rate: Tensor,
    time_bias: Tensor,
    matrix: Tensor,
    at: Tensor,
    strongest: float = 1.0,
    norm: GatedNorm | None = None,
) -> Tensor:
    """See `kernels/delta_rule.py`. Rows of all inputs may lie in wider ones; their heads are side by side. Rows
    without a state get zeros.
    """
    count, heads, value_dim = v.shape
    key_dim = q.shape[2]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    values = min(STEP_VALUES, triton.next_power_of_2(value_dim))
    _delta_step_kernel[(triton.cdiv(value_dim, values), heads, count)](
        q,
        k,
        v,
        a,
        b,
        log_rate,
        time_bias,
        matrix,
        at,
        out,
        *(each.stride(0) for each in (q, k, v, a, b)),
        len(matrix) - 1,
        NORM_EPS,
        HEADS=heads,
        SHARED=heads // q.shape[1],
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEYS=triton.next_power_of_2(key_dim),
        VALUES=values,
        BY_CHANNEL=a.dim() == 3,
        STRONGEST=strongest,
        num_warps=STEP_WARPS,
        **overlapping(v),
    )
    return through(norm, out)


@triton.jit(do_not_specialize=["tokens"])
def _delta_chunk_kernel(
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
    factors,
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
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    CHUNK: tl.constexpr,
    STRONGEST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Computes what the tokens of one chunk write and how they see each other, before states are known.

    written: [T, HEADS, VALUE_DIM]. taken: [T, HEADS, KEY_DIM]. inside: [T, HEADS, CHUNK], how much a token sees of what
    each token of its chunk writes. factors: [3, HEADS, T], what keys and queries are
    multiplied by, each its length and a decay: of a key to the chunk's end, of a query from the chunk's beginning. The
    third is the decay of the whole chunk, at its first token.
    """
    head = tl.program_id(0)
    begin = tl.load(chunks + tl.program_id(1) * 2)
    end = tl.load(cuts + tl.load(chunks + tl.program_id(1) * 2 + 1) * 5 + 1)
    if begin >= end:
        return
    i = tl.arange(0, CHUNK)
    token = (begin + i).to(tl.int64)
    exists = token < end
    dk = tl.arange(0, KEYS)
    dv = tl.arange(0, VALUES)
    some_keys = exists[:, None] & (dk < KEY_DIM)[None, :]
    some_values = exists[:, None] & (dv < VALUE_DIM)[None, :]
    within = (head // SHARED) * KEY_DIM + dk[None, :]
    keys = tl.load(k + token[:, None] * k_stride + within, mask=some_keys, other=0.0)
    queries = tl.load(q + token[:, None] * q_stride + within, mask=some_keys, other=0.0)
    squares = keys.to(tl.float32) * keys.to(tl.float32)
    of_key = tl.rsqrt(tl.sum(squares, axis=1) + eps)
    squares = queries.to(tl.float32) * queries.to(tl.float32)
    of_query = tl.rsqrt(tl.sum(squares, axis=1) + eps) * KEY_DIM**-0.5
    time = tl.load(a + token * a_stride + head, mask=exists, other=0.0).to(tl.float32)
    decay = -tl.exp(tl.load(log_rate + head)) * softplus(time + tl.load(time_bias + head))
    since = tl.cumsum(tl.where(exists, decay, 0.0), 0)
    strength = tl.sigmoid(tl.load(b + token * b_stride + head, mask=exists, other=0.0).to(tl.float32))
    strength = tl.where(exists, STRONGEST * strength, 0.0)
    # Above the diagonal a quotient could overflow.
    lower = i[:, None] >= i[None, :]
    pairs = tl.exp(tl.where(lower, since[:, None] - since[None, :], 0.0)) * of_key[None, :]
    pairs = tl.where(lower, pairs, 0.0)
    overlap = tl.dot(keys, tl.trans(keys), input_precision="ieee") * pairs
    system = tl.where(i[:, None] > i[None, :], overlap * (of_key * strength)[:, None], 0.0)
    seen = tl.dot(queries, tl.trans(keys), input_precision="ieee") * pairs * of_query[:, None]
    tl.store(inside + (token * HEADS + head)[:, None] * CHUNK + i[None, :], seen, mask=exists[:, None])
    inverse = invert(system, CHUNK, PRECISION)
    values = tl.load(v + token[:, None] * v_stride + head * VALUE_DIM + dv[None, :], mask=some_values, other=0.0)
    of_values = (inverse * strength[None, :]).to(values.dtype)
    found = tl.dot(of_values, values, input_precision="ieee")
    tl.store(written + (token * HEADS + head)[:, None] * VALUE_DIM + dv[None, :], found, mask=some_values)
    of_keys = (inverse * (strength * of_key * tl.exp(since))[None, :]).to(keys.dtype)
    found = tl.dot(of_keys, keys, input_precision="ieee")
    tl.store(taken + (token * HEADS + head)[:, None] * KEY_DIM + dk[None, :], found, mask=some_keys)
    # The decay of the whole chunk is the least.
    whole = tl.min(since, axis=0)
    place = factors + head.to(tl.int64) * tokens + token
    columns = tokens.to(tl.int64) * HEADS
    tl.store(place, of_key * tl.exp(whole - since), mask=exists)
    tl.store(place + columns, of_query * tl.exp(since), mask=exists)
    tl.store(place + 2 * columns, tl.exp(whole + tl.zeros((CHUNK,), tl.float32)), mask=i == 0)


# The rows of a later turn begin anywhere in their table.
@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["rows"])
def _delta_runs_kernel(
    q,
    k,
    written,
    taken,
    inside,
    factors,
    matrix,
    cuts,
    rows,
    out,
    q_stride,
    k_stride,
    tokens,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
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
    columns = tokens.to(tl.int64) * HEADS
    # States are held with the values first: so few rows are multiplied that Triton does not choose Hopper's
    # asynchronous products for them (see `state_space.warps`).
    some = (dv < VALUE_DIM)[:, None] & (dk < KEY_DIM)[None, :]
    size = HEADS * KEY_DIM * VALUE_DIM
    tile = matrix + (head * KEY_DIM + dk)[None, :] * VALUE_DIM + dv[:, None]
    own = tl.load(cuts + first * 5 + 3).to(tl.int64) * size
    state = tl.load(tile + own, mask=some, other=0.0).to(tl.float32)
    within = (head // SHARED) * KEY_DIM + dk[None, :]
    of_head = factors + head.to(tl.int64) * tokens
    for number in range(first, tl.load(rows + row + 1)):
        start = tl.load(cuts + number * 5)
        end = tl.load(cuts + number * 5 + 1)
        for begin in range(start, end, CHUNK):
            token = (begin + i).to(tl.int64)
            exists = token < end
            some_keys = exists[:, None] & (dk < KEY_DIM)[None, :]
            some_values = (dv < VALUE_DIM)[:, None] & exists[None, :]
            place = token * HEADS + head
            takes = tl.load(taken + place[:, None] * KEY_DIM + dk[None, :], mask=some_keys, other=0.0)
            new = tl.load(written + place[None, :] * VALUE_DIM + dv[:, None], mask=some_values, other=0.0)
            of_keys = tl.load(of_head + token, mask=exists, other=0.0)
            of_queries = tl.load(of_head + columns + token, mask=exists, other=0.0)
            whole = tl.load(of_head + 2 * columns + begin)
            queries = tl.load(q + token[:, None] * q_stride + within, mask=some_keys, other=0.0)
            seen = tl.load(inside + place[:, None] * CHUNK + i[None, :], mask=exists[:, None], other=0.0)
            keys = tl.load(k + token[:, None] * k_stride + within, mask=some_keys, other=0.0)
            before = state.to(takes.dtype)
            added = new.to(tl.float32) - tl.dot(before, tl.trans(takes), input_precision="ieee")
            kept = (added * of_keys[None, :]).to(keys.dtype)
            state = state * whole + tl.dot(kept, keys, input_precision="ieee")
            read = tl.dot(before, tl.trans(queries), input_precision="ieee") * of_queries[None, :]
            read += tl.dot(added.to(seen.dtype), tl.trans(seen), input_precision="ieee")
            tl.store(out + place[None, :] * VALUE_DIM + dv[:, None], read, mask=some_values)
        checkpoint = tl.load(cuts + number * 5 + 4).to(tl.int64)
        tl.store(tile + checkpoint * size, state, mask=some & (checkpoint >= 0))
    tl.store(tile + own, state, mask=some)


def delta_runs(
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
    """See `kernels/delta_rule.py`. Rows of all inputs may lie in wider ones; their heads are side by side."""
    if a.dim() == 3:
        return delta_runs_by_channel(q, k, v, a, b, log_rate, time_bias, matrix, runs, strongest)
    tokens, heads, value_dim = v.shape
    key_dim, dtype, device = q.shape[2], v.dtype, v.device
    out = torch.empty(v.shape, dtype=dtype, device=device)
    written = torch.empty_like(out)
    taken = torch.empty(tokens, heads, key_dim, dtype=dtype, device=device)
    inside = torch.empty(tokens, heads, CHUNK, dtype=dtype, device=device)
    factors = torch.empty(3, heads, tokens, dtype=torch.float32, device=device)
    sizes = {
        "HEADS": heads,
        "SHARED": heads // q.shape[1],
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "KEYS": tile(key_dim),
        "CHUNK": CHUNK,
    }
    _delta_chunk_kernel[(heads, len(runs.chunks))](
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
        factors,
        *(each.stride(0) for each in (q, k, v, a, b)),
        tokens,
        NORM_EPS,
        **sizes,
        VALUES=tile(value_dim),
        STRONGEST=strongest,
        PRECISION=SOLVERS[dtype],
        num_warps=CHUNK_WARPS,
    )
    constants = {**sizes, "num_warps": warps(tile(key_dim)), "num_stages": 1}
    strides = q.stride(0), k.stride(0)

    def arguments(numbers: Tensor) -> tuple[Any, ...]:
        return q, k, written, taken, inside, factors, matrix, runs.turns, numbers, out, *strides, tokens

    launch_turns(_delta_runs_kernel, runs, heads, value_dim, arguments, constants, "VALUES")
    return out
