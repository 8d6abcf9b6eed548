"""The gated delta rule on Hopper by the kernels' package: one token of many rows, and prompts, for states of 128 by 128
numbers and one decay for each head. All other shapes, and a few rows, are computed by `delta_rule` beside this.

The shape alone decides which kernel is used, so it is the same in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel import delta_rule as kernels
from mysgl_kernel import spans
from mysgl_kernel.library import multiprocessors
from mysglang.srt.kernels.cuda import delta_rule
from mysglang.srt.kernels.delta_rule import NORM_EPS, GatedNorm
from mysglang.srt.kernels.states import CHUNK, Runs, turns_of

assert spans.CHUNK == CHUNK


def available() -> bool:
    """True if the present device runs these kernels. Compiles them if necessary."""
    return kernels.available() and spans.available()


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
    norm: GatedNorm | None = None,
) -> Tensor:
    """Implements the op `delta_step`. `kernels/delta_rule.py` describes its arguments and result."""
    rows, heads, _ = v.shape
    many = rows * heads >= MANY * multiprocessors(v.device)
    if many and _fits(q, k, v, a, b, matrix):
        tokens, own = kernels.Tokens(q, k, v, a, b, log_rate, time_bias), None if norm is None else kernels.Norm(*norm)
        return kernels.step(tokens, matrix, at, strongest, NORM_EPS, own)
    return delta_rule.delta_step(q, k, v, a, b, log_rate, time_bias, matrix, at, strongest, norm)


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
    if not _fits(q, k, v, a, b, matrix) or v.shape[1] > kernels.MOST_SHARED * q.shape[1]:
        return delta_rule.delta_runs(q, k, v, a, b, log_rate, time_bias, matrix, runs, strongest)
    tokens = kernels.Tokens(q, k, v, a, b, log_rate, time_bias)
    chunks = kernels.take_chunks(tokens, runs.cuts, runs.chunks, strongest, NORM_EPS)
    out = torch.empty_like(chunks.written)
    for turn in turns_of(runs):
        spans.take_delta_spans(q, k, *chunks, matrix, runs.turns[turn], out)
    return out


def _fits(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, matrix: Tensor) -> bool:
    """True if the kernels are written for these dtypes and sizes, and can copy rows of them in whole vectors."""
    return (
        a.dim() == 2
        and all(each.dtype is torch.bfloat16 for each in (q, k, v, a, b))
        and matrix.dtype in spans.STATES
        and matrix.shape[2:] == (spans.DIM, spans.DIM)
        and all(each.stride(0) % 8 == 0 and each.data_ptr() % 16 == 0 for each in (q, k, v))
    )
