"""Prompts of Mamba-2 on Hopper, for states of 128 by 64 numbers, which go from chunk to chunk in a kernel of the
kernels' package. What does not depend on states, and all other shapes, is computed by `state_space` beside this.

The shape alone decides which kernel is used, so it is the same in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel import spans
from mysglang.srt.kernels.cuda import state_space
from mysglang.srt.kernels.states import CHUNK, Runs, turns_of

assert spans.CHUNK == CHUNK

available = spans.available


def scan_runs(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    time: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    runs: Runs,
) -> Tensor:
    """Implements the op `scan_runs`. `kernels/state_space.py` describes its arguments and result."""
    if not _fits(x, b, c, matrix):
        return state_space.scan_runs(x, b, c, time, time_bias, log_rate, skip, matrix, runs)
    inside, factors = state_space.chunks_of(x, b, c, time, time_bias, log_rate, runs)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for turn in turns_of(runs):
        spans.take_scan_spans(c, b, x, inside, factors, skip, matrix, runs.turns[turn], out)
    return out


def _fits(x: Tensor, b: Tensor, c: Tensor, matrix: Tensor) -> bool:
    """True if the kernel is written for these dtypes and sizes, and can copy rows of them in whole vectors."""
    return (
        all(each.dtype is torch.bfloat16 for each in (x, b, c))
        and matrix.dtype in spans.STATES
        and matrix.shape[2:] == (spans.DIM, spans.VALUES["scan"])
        and x.shape[1] // b.shape[1] % 2 == 0
        and all(each.stride(0) % 8 == 0 and each.data_ptr() % 16 == 0 for each in (x, b, c))
    )
