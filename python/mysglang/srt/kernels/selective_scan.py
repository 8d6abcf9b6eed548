"""Mamba's selective scan, for one token of many rows or many of some rows.

Gu and Dao, "Mamba" (arXiv 2312.00752), section 3. With the state s [state_size] of a channel, and for each token an
input x and a time step d of the channel, and rows b and c [state_size] that all channels share:

    s = exp(d A) s + d x b,    y = c . s + D x

A (negative) is a row of numbers for each channel, and D a number. States lie in stores as in `states.py`. All
is computed in float32. On CUDA many tokens have a kernel; one token of each row is plain torch on every device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.states import CHUNK, Runs, take_runs


def _selective_step(
    x: Tensor,
    time: Tensor,
    b: Tensor,
    c: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    at: Tensor,
) -> Tensor:
    """Returns the recurrence for one new token of each of R rows: [R, channels] float32.

    x: [R, channels]. time: [R, channels] in any dtype; d = softplus(time + time_bias). b, c: [R, state_size].
    time_bias, skip: [channels]; log_rate: [channels, state_size]; all float32, with A = -exp(log_rate) and D = skip.
    matrix: [N, channels, state_size], the states, which are computed in float32 and updated.
    at: [R] int64 entries of `matrix`, distinct except for rows without a state.
    """
    kept, added = _parts(x, time, b, time_bias, log_rate)
    state = matrix.index_select(0, at).float().mul_(kept).add_(added)
    matrix.index_copy_(0, at, state.to(matrix.dtype))
    return _read(state, x, c, skip)


def _selective_runs(
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
    """Returns the recurrence for consecutive tokens of some rows; T replaces R in the shapes. Tokens in no run are
    unspecified in the result.
    """

    def run(part: slice, entry: int) -> Tensor:
        found = []
        for start in range(part.start, part.stop, CHUNK):
            own = slice(start, min(start + CHUNK, part.stop))
            kept, states = _parts(x[own], time[own], b[own], time_bias, log_rate)
            states[0] += kept[0] * matrix[entry]
            # After the turn for `reach`, a token's state has what the 2 * reach newest tokens wrote. So a chunk takes
            # as many turns as its length has bits, each over all tokens at once.
            reach = 1
            while reach < len(states):
                states[reach:] += kept[reach:] * states[:-reach]
                kept[reach:] = kept[reach:] * kept[:-reach]
                reach *= 2
            matrix[entry] = states[-1]
            found.append(_read(states, x[own], c[own], skip))
        return torch.cat(found)

    return take_runs(runs, x.new_empty(x.shape, dtype=torch.float32), matrix, run)


def _parts(x: Tensor, time: Tensor, b: Tensor, time_bias: Tensor, log_rate: Tensor) -> tuple[Tensor, Tensor]:
    """Returns exp(d A) and d x b: [N, channels, state_size] both."""
    steps = F.softplus(time.float() + time_bias)
    kept = (steps.unsqueeze(-1) * -log_rate.exp()).exp_()
    return kept, (steps * x.float()).unsqueeze(-1) * b.float().unsqueeze(-2)


def _read(states: Tensor, x: Tensor, c: Tensor, skip: Tensor) -> Tensor:
    """[N, channels, state_size] -> [N, channels] float32."""
    return (states * c.float().unsqueeze(-2)).sum(dim=-1) + x.float() * skip


selective_step = Op("selective_step", reference=_selective_step)
selective_runs = Op(
    "selective_runs", reference=_selective_runs, cuda="mysglang.srt.kernels.cuda.selective_scan:selective_runs"
)
