"""The gated delta rule on Hopper: states of 128 by 128 numbers pass through kernels of the kernels' package, one token
of many rows or from chunk to chunk of a prompt. What does not depend on states, and all other shapes, is computed as in
`delta_rule` beside this.

The shape alone decides which kernel is used, so it is the same in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel import delta_rule as states
from mysglang.srt.kernels.cuda import delta_rule
from mysglang.srt.kernels.delta_rule import NORM_EPS
from mysglang.srt.kernels.states import CHUNK, Runs

assert states.CHUNK == CHUNK

available = states.available

MANY = 8
"""States for each multiprocessor from which on a kernel that streams them is used. Fewer are spread better in parts."""


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
) -> Tensor:
    """Implements the op `delta_step`. `kernels/delta_rule.py` describes its arguments and result."""
    rows, heads, _ = v.shape
    many = rows * heads >= MANY * states.multiprocessors(v.device)
    if many and a.dim() == 2 and a.dtype is b.dtype is v.dtype and _fits(q, k, v, matrix):
        return states.step(q, k, v, a, b, log_rate, time_bias, matrix, at, strongest, NORM_EPS)
    return delta_rule.delta_step(q, k, v, a, b, log_rate, time_bias, matrix, at, strongest)


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
    """Implements the op `delta_runs`. `kernels/delta_rule.py` describes its arguments and result."""
    if a.dim() == 3 or not _fits(q, k, v, matrix):
        return delta_rule.delta_runs(q, k, v, a, b, log_rate, time_bias, matrix, runs, strongest)
    chunks = delta_rule.chunks_of(q, k, v, a, b, log_rate, time_bias, runs, strongest)
    out = torch.empty_like(chunks.written)
    at = 0
    for rows in runs.turn_sizes:
        states.take_spans(
            q, k, chunks.written, chunks.taken, chunks.inside, chunks.factors, matrix, runs.turns[at : at + rows], out
        )
        at += rows
    return out


def _fits(q: Tensor, k: Tensor, v: Tensor, matrix: Tensor) -> bool:
    """True if the kernels are written for these dtypes and sizes, and can copy rows of them in whole vectors."""
    return (
        v.dtype is q.dtype is k.dtype is torch.bfloat16
        and matrix.dtype in states.STATES
        and matrix.shape[2:] == (states.DIM, states.DIM)
        and all(each.stride(0) % 8 == 0 and each.data_ptr() % 16 == 0 for each in (q, k, v))
    )
