"""Mamba's selective scan in Triton. The formulas are in `kernels/selective_scan.py`.

runs   (channels, row)   a row's tokens in their order, a few at a time

A token's update of a state, s -> k s + a, is the pair (k, a), and two updates in turn are one again. So the states
after each of a few tokens come from an associative scan over the tokens' pairs, and their inputs are read together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mysglang.srt.kernels.cuda.state_space import softplus
from mysglang.srt.kernels.states import Runs

TOKENS, CHANNELS = 16, 16
"""Tokens that a program takes at a time, and channels of a program."""


@triton.jit
def _in_turn(kept, added, later_kept, later_added):
    return kept * later_kept, added * later_kept + later_added


@triton.jit
def _selective_runs_kernel(
    x,
    time,
    b,
    c,
    time_bias,
    log_rate,
    skip,
    matrix,
    cuts,
    rows,
    out,
    x_stride,
    time_stride,
    b_stride,
    c_stride,
    channels,
    STATE: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Takes CHANNELS channels of one row through its tokens. WIDTH: a power of two, at least STATE."""
    row = tl.program_id(1)
    first = tl.load(rows + row)
    last = tl.load(rows + row + 1)
    if first == last:
        return
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    n = tl.arange(0, WIDTH)
    i = tl.arange(0, TOKENS)
    some = inside[:, None] & (n < STATE)[None, :]
    numbers = channel[:, None] * STATE + n[None, :]
    rate = -tl.exp(tl.load(log_rate + numbers, mask=some, other=0.0))
    shift = tl.load(time_bias + channel, mask=inside, other=0.0)
    passed = tl.load(skip + channel, mask=inside, other=0.0)
    size = channels.to(tl.int64) * STATE
    own = matrix + tl.load(cuts + first * 5 + 3) * size + numbers
    state = tl.load(own, mask=some, other=0.0).to(tl.float32)
    for number in range(first, last):
        start = tl.load(cuts + number * 5)
        end = tl.load(cuts + number * 5 + 1)
        for begin in range(start, end, TOKENS):
            token = (begin + i).to(tl.int64)
            exists = token < end
            both = exists[:, None] & inside[None, :]
            read = exists[:, None] & (n < STATE)[None, :]
            inputs = tl.load(x + token[:, None] * x_stride + channel[None, :], mask=both, other=0.0).to(tl.float32)
            raw = tl.load(time + token[:, None] * time_stride + channel[None, :], mask=both, other=0.0)
            step = tl.where(both, softplus(raw.to(tl.float32) + shift[None, :]), 0.0)
            write = tl.load(b + token[:, None] * b_stride + n[None, :], mask=read, other=0.0).to(tl.float32)
            wanted = tl.load(c + token[:, None] * c_stride + n[None, :], mask=read, other=0.0).to(tl.float32)
            # Tokens behind the end keep the state and add nothing to it.
            kept = tl.exp(step[:, :, None] * rate[None, :, :])
            added = (step * inputs)[:, :, None] * write[:, None, :]
            kept, added = tl.associative_scan((kept, added), 0, _in_turn)
            states = kept * state[None, :, :] + added
            found = tl.sum(states * wanted[:, None, :], axis=2) + inputs * passed[None, :]
            tl.store(out + token[:, None] * channels + channel[None, :], found, mask=both)
            state = tl.sum(tl.where((i == TOKENS - 1)[:, None, None], states, 0.0), axis=0)
        checkpoint = tl.load(cuts + number * 5 + 4).to(tl.int64)
        tl.store(matrix + checkpoint * size + numbers, state, mask=some & (checkpoint >= 0))
    tl.store(own, state, mask=some)


def selective_runs(
    x: Tensor,
    time: Tensor,
    b: Tensor,
    c: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    runs: Runs,
) -> Tensor:
    """See `kernels/selective_scan.py`. Rows of x, time, b and c may lie in wider ones."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    channels, state = log_rate.shape
    _selective_runs_kernel[(triton.cdiv(channels, CHANNELS), len(runs.rows) - 1)](
        x,
        time,
        b,
        c,
        time_bias,
        log_rate,
        skip,
        matrix,
        runs.cuts,
        runs.rows,
        out,
        *(each.stride(0) for each in (x, time, b, c)),
        channels,
        STATE=state,
        WIDTH=triton.next_power_of_2(state),
        TOKENS=TOKENS,
        CHANNELS=CHANNELS,
        num_warps=4,
    )
    return out
