"""The causal convolution over the newest few tokens, in Triton: one token of many rows, and many tokens of some rows.

    step   (row, channels)     reads the row's window, gives one output, moves the window on by one
    runs   (chunk, channels)   reads the tokens, and the window where a tap reaches behind the row's first token
           (row, channels)     leaves the newest inputs in the row's window, and in those of its checkpoints

Windows are written after all chunks have read them, by a kernel of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mysglang.srt.kernels.cuda.overlap import overlapping
from mysglang.srt.kernels.states import CHUNK, Runs

STEP_CHANNELS = 256
STEP_ROWS, FEW_ROWS = 4, 16
"""Rows of a program, whose loads are in flight together. With up to FEW_ROWS it has one, so that more programs share
the work.
"""
RUN_TOKENS = 16
"""Tokens of a chunk that a program convolves, at most; they share the loads of the weights."""
RUN_CHANNELS = 128


@triton.jit(do_not_specialize=["absent", "count"])
def _conv_step_kernel(
    x,
    weight,
    bias,
    recent,
    at,
    out,
    x_stride,
    absent,
    count,
    channels,
    KERNEL: tl.constexpr,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Processes one new token of ROWS rows. absent: the entry of rows without a state, which is neither read nor
    written.
    """
    if OVERLAP:
        gdc_launch_dependents()
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = channel < channels
    factors = weight + channel * KERNEL
    newest = tl.load(factors + KERNEL - 1, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_wait()
    entry = tl.load(at + row, mask=row < count, other=absent)
    here = (row < count)[:, None] & inside[None, :]
    exists = (entry != absent)[:, None] & inside[None, :]
    far = row.to(tl.int64)[:, None]
    value = tl.load(x + far * x_stride + channel[None, :], mask=exists, other=0.0).to(recent.dtype.element_ty)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    window = recent + entry[:, None] * ((KERNEL - 1) * channels) + channel[None, :]
    for tap in tl.static_range(KERNEL - 1):
        seen = tl.load(window + tap * channels, mask=exists, other=0.0)
        total += seen.to(tl.float32) * tl.load(factors + tap, mask=inside, other=0.0).to(tl.float32)[None, :]
    # A loop of its own: a load behind a store waits for it, and those above must be in flight together. What is one
    # place further on was not overwritten yet, and no other thread has this channel.
    for tap in tl.static_range(1, KERNEL - 1):
        seen = tl.load(window + tap * channels, mask=exists, other=0.0)
        tl.store(window + (tap - 1) * channels, seen, mask=exists)
    tl.store(window + (KERNEL - 2) * channels, value, mask=exists)
    total += value.to(tl.float32) * newest[None, :]
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total * tl.sigmoid(total)
    tl.store(out + far * channels + channel[None, :], total, mask=here)


@triton.jit
def _conv_runs_kernel(
    x,
    weight,
    bias,
    recent,
    cuts,
    chunks,
    out,
    x_stride,
    channels,
    KERNEL: tl.constexpr,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
    CHUNK: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolves a part of a chunk's tokens."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1)
    chunk = chunks + (part // (CHUNK // TOKENS)) * 2
    begin = tl.load(chunk) + (part % (CHUNK // TOKENS)) * TOKENS
    cut = cuts + tl.load(chunk + 1) * 5
    end = tl.minimum(tl.load(chunk) + CHUNK, tl.load(cut + 1))
    if begin >= end:
        return
    first = tl.load(cut + 2)
    entry = tl.load(cut + 3).to(tl.int64)
    inside = channel < channels
    token = begin + tl.arange(0, TOKENS)
    exists = token < end
    window = recent + entry * (KERNEL - 1) * channels + channel[None, :]
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    for tap in tl.static_range(KERNEL):
        source = token - (KERNEL - 1 - tap)
        own = exists & (source >= first)
        seen = tl.load(
            x + source.to(tl.int64)[:, None] * x_stride + channel[None, :],
            mask=own[:, None] & inside[None, :],
            other=0.0,
        ).to(recent.dtype.element_ty)
        if begin - first < KERNEL - 1:
            before = exists & (source < first)
            place = KERNEL - 1 + source - first
            seen += tl.load(window + place[:, None] * channels, mask=before[:, None] & inside[None, :], other=0.0)
        factor = tl.load(weight + channel * KERNEL + tap, mask=inside, other=0.0).to(tl.float32)
        total += seen.to(tl.float32) * factor[None, :]
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total * tl.sigmoid(total)
    target = out + token.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(target, total, mask=exists[:, None] & inside[None, :])


@triton.jit
def _conv_windows_kernel(x, recent, cuts, rows, x_stride, channels, KERNEL: tl.constexpr, BLOCK: tl.constexpr):
    """Copies the newest inputs at the end of a row's spans to its checkpoints, and last to its own window."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = tl.program_id(1)
    last = tl.load(rows + row + 1) - 1
    for number in range(tl.load(rows + row), last + 1):
        cut = cuts + number * 5
        end = tl.load(cut + 1)
        first = tl.load(cut + 2)
        entry = tl.load(cut + 3).to(tl.int64)
        checkpoint = tl.load(cut + 4).to(tl.int64)
        window = recent + entry * (KERNEL - 1) * channels + channel
        for place in tl.static_range(KERNEL - 1):
            token = end - (KERNEL - 1) + place
            own = inside & (token >= first)
            seen = tl.load(x + token.to(tl.int64) * x_stride + channel, mask=own, other=0.0)
            seen = seen.to(recent.dtype.element_ty)
            # Older inputs are in the row's window. Places are filled from the oldest on, so they are still there.
            older = KERNEL - 1 + token - first
            seen += tl.load(window + older * channels, mask=inside & (token < first), other=0.0)
            tl.store(
                recent + (checkpoint * (KERNEL - 1) + place) * channels + channel, seen, inside & (checkpoint >= 0)
            )
            tl.store(window + place * channels, seen, mask=inside & (number == last))


def conv_step(
    x: Tensor, weight: Tensor, recent: Tensor, at: Tensor, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """See `kernels/short_convolution.py`. Rows of x may lie in wider ones. Rows without a state get zeros, or the bias
    and silu of it.
    """
    count, channels = x.shape
    out = torch.empty(count, channels, dtype=x.dtype, device=x.device)
    rows = STEP_ROWS if count > FEW_ROWS else 1
    _conv_step_kernel[(triton.cdiv(channels, STEP_CHANNELS), triton.cdiv(count, rows))](
        x,
        weight,
        weight if bias is None else bias,
        recent,
        at,
        out,
        x.stride(0),
        len(recent) - 1,
        count,
        channels,
        KERNEL=weight.shape[1],
        BIASED=bias is not None,
        SILU=silu,
        ROWS=rows,
        BLOCK=STEP_CHANNELS,
        num_warps=max(2, rows),
        **overlapping(x),
    )
    return out


def conv_runs(
    x: Tensor, weight: Tensor, recent: Tensor, runs: Runs, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """See `kernels/short_convolution.py`. Rows of x may lie in wider ones."""
    count, channels = x.shape
    out = torch.empty(count, channels, dtype=x.dtype, device=x.device)
    kernel, blocks = weight.shape[1], triton.cdiv(channels, RUN_CHANNELS)
    _conv_runs_kernel[(blocks, len(runs.chunks) * (CHUNK // RUN_TOKENS))](
        x,
        weight,
        weight if bias is None else bias,
        recent,
        runs.cuts,
        runs.chunks,
        out,
        x.stride(0),
        channels,
        KERNEL=kernel,
        BIASED=bias is not None,
        SILU=silu,
        CHUNK=CHUNK,
        TOKENS=RUN_TOKENS,
        BLOCK=RUN_CHANNELS,
        num_warps=4,
    )
    keep_windows(x, recent, runs)
    return out


def keep_windows(x: Tensor, recent: Tensor, runs: Runs) -> None:
    """Keeps the newest inputs at the end of each row's spans, in its window and its checkpoints."""
    channels = x.shape[1]
    _conv_windows_kernel[(triton.cdiv(channels, RUN_CHANNELS), len(runs.rows) - 1)](
        x,
        recent,
        runs.cuts,
        runs.rows,
        x.stride(0),
        channels,
        KERNEL=recent.shape[1] + 1,
        BLOCK=RUN_CHANNELS,
        num_warps=4,
    )
