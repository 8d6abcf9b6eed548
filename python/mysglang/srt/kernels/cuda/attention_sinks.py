"""Attention sinks after an attention that knows none, in Triton.

A sink is one more key of a head, which all queries see and whose value is zero. If L is the logarithm of the sum of the
exponents of a query's scores, it scales the result by exp(L) / (exp(L) + exp(sink)) = sigmoid(L - sink).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES = 4096
"""Numbers of a program at most."""


@triton.jit(do_not_specialize=["count"])
def _weigh_sinks_kernel(
    out,
    lse,
    sinks,
    count,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    LINES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Scales LINES of the `count` heads of tokens."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    d = tl.arange(0, WIDTH)
    there = line < count
    sink = tl.load(sinks + line % HEADS) * 1.4426950408889634
    share = 1.0 / (1.0 + tl.exp2(sink - tl.load(lse + line, mask=there, other=0.0)))
    at = out + line[:, None] * DIM + d[None, :]
    inside = there[:, None] & (d < DIM)[None, :]
    tl.store(at, tl.load(at, mask=inside, other=0.0).to(tl.float32) * share[:, None], mask=inside)


def weigh_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Scales attention's result in place. out: [T, num_heads, dim], dense; lse: [T, num_heads] float32, dense, the
    log-sum-exps of the scores in base 2; sinks: [num_heads] float32.
    """
    tokens, heads, dim = out.shape
    assert out.is_contiguous() and lse.is_contiguous() and lse.dtype is sinks.dtype is torch.float32
    width = triton.next_power_of_2(dim)
    lines = max(VALUES // width, 1)
    _weigh_sinks_kernel[(triton.cdiv(tokens * heads, lines),)](
        out, lse, sinks, tokens * heads, HEADS=heads, DIM=dim, LINES=lines, WIDTH=width, num_warps=8
    )
