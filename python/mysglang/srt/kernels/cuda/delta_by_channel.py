"""The gated delta rule with a decay for each channel of the key, for many tokens of some rows, in Triton.

runs   (values, value head, row)   a row's tokens one after another

A chunk has no products for tensor cores here: how much a token sees of another depends on the channel. So a program
goes from token to token, and reads what the next one needs before it computes with the present one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.cuda.state_space import softplus
from mysglang.srt.kernels.delta_rule import NORM_EPS
from mysglang.srt.kernels.states import Runs

VALUES = 32
"""Columns of a state that a program takes through the tokens."""
WARPS = 2


@triton.jit
def _token(q, k, v, a, b, q_stride, k_stride, v_stride, a_stride, b_stride, number, some_keys, some_values):
    """Loads the query, key, value, decays and strength of a token, before their functions. The pointers are those of
    one head's channels of the first token.
    """
    token = tl.zeros((), tl.int64) + number
    return (
        tl.load(q + token * q_stride, mask=some_keys, other=0.0).to(tl.float32),
        tl.load(k + token * k_stride, mask=some_keys, other=0.0).to(tl.float32),
        tl.load(v + token * v_stride, mask=some_values, other=0.0).to(tl.float32),
        tl.load(a + token * a_stride, mask=some_keys, other=0.0).to(tl.float32),
        tl.load(b + token * b_stride).to(tl.float32),
    )


@triton.jit
def _by_channel_kernel(
    q,
    k,
    v,
    a,
    b,
    log_rate,
    time_bias,
    matrix,
    cuts,
    rows,
    out,
    q_stride,
    k_stride,
    v_stride,
    a_stride,
    b_stride,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    STRONGEST: tl.constexpr,
):
    """Takes VALUES columns of one head's state through a row's tokens. STRONGEST: upper bound of strengths."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    first = tl.load(rows + row)
    last = tl.load(rows + row + 1)
    if first == last:
        return
    dk = tl.arange(0, KEYS)
    dv = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    some_keys, some_values = dk < KEY_DIM, dv < VALUE_DIM
    some = some_keys[:, None] & some_values[None, :]
    rate = tl.exp(tl.load(log_rate + head))
    shift = tl.load(time_bias + head * KEY_DIM + dk, mask=some_keys, other=0.0)
    q += (head // SHARED) * KEY_DIM + dk
    k += (head // SHARED) * KEY_DIM + dk
    v += head * VALUE_DIM + dv
    a += head * KEY_DIM + dk
    b += head
    out += head * VALUE_DIM + dv
    size = HEADS * KEY_DIM * VALUE_DIM
    tile = matrix + (head * KEY_DIM + dk)[:, None] * VALUE_DIM + dv[None, :]
    own = tile + tl.load(cuts + first * 5 + 3).to(tl.int64) * size
    state = tl.load(own, mask=some, other=0.0).to(tl.float32)
    for number in range(first, last):
        start = tl.load(cuts + number * 5)
        end = tl.load(cuts + number * 5 + 1)
        query, key, value, time, strong = _token(
            q, k, v, a, b, q_stride, k_stride, v_stride, a_stride, b_stride, start, some_keys, some_values
        )
        for token in range(start, end):
            then = tl.minimum(token + 1, end - 1)
            next_query, next_key, next_value, next_time, next_strong = _token(
                q, k, v, a, b, q_stride, k_stride, v_stride, a_stride, b_stride, then, some_keys, some_values
            )
            query = query * (tl.rsqrt(tl.sum(query * query) + eps) * KEY_DIM**-0.5)
            key = key * tl.rsqrt(tl.sum(key * key) + eps)
            state = state * tl.exp(-rate * softplus(time + shift))[:, None]
            # Both read the state before the token writes to it, as in a step.
            said = tl.sum(state * key[:, None], axis=0)
            read = tl.sum(state * query[:, None], axis=0)
            new = (value - said) * (STRONGEST * tl.sigmoid(strong))
            state += key[:, None] * new[None, :]
            place = out + (tl.zeros((), tl.int64) + token) * HEADS * VALUE_DIM
            tl.store(place, read + tl.sum(key * query) * new, mask=some_values)
            query, key, value, time, strong = next_query, next_key, next_value, next_time, next_strong
        checkpoint = tl.load(cuts + number * 5 + 4).to(tl.int64)
        tl.store(tile + checkpoint * size, state, mask=some & (checkpoint >= 0))
    tl.store(own, state, mask=some)


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
    heads, value_dim = v.shape[1:]
    key_dim = q.shape[2]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    values = min(VALUES, triton.next_power_of_2(value_dim))
    _by_channel_kernel[(triton.cdiv(value_dim, values), heads, len(runs.rows) - 1)](
        q,
        k,
        v,
        a,
        b,
        log_rate,
        time_bias,
        matrix,
        runs.cuts,
        runs.rows,
        out,
        *(each.stride(0) for each in (q, k, v, a, b)),
        NORM_EPS,
        HEADS=heads,
        SHARED=heads // q.shape[1],
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEYS=triton.next_power_of_2(key_dim),
        VALUES=values,
        STRONGEST=strongest,
        num_warps=WARPS,
    )
    return out
