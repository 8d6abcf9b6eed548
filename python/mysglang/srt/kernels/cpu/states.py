"""The gated delta rule and Mamba-2's recurrence on the CPU: each row's state is updated where it is.

A state of a large model takes 2 MB, more than most caches near a core. So a row reads and writes it as seldom as
possible, and is done before the next row begins: one product reads the state, before it is updated, and what the token
itself writes is read without it. A prompt is computed in pieces for the same reason. States that are kept in other
numbers than float32 are computed by the references.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel.cpu.recording import recorded_whole
from mysglang.srt.kernels import delta_rule, state_space
from mysglang.srt.kernels.delta_rule import GatedNorm, by_channel, delta_gates, delta_run, heads_of, through
from mysglang.srt.kernels.state_space import scan_run
from mysglang.srt.kernels.states import CHUNK, Runs, take_runs

PIECE = 2 * CHUNK
"""Tokens of a prompt whose chunks are computed together. What is made of all chunks of a long prompt leaves the caches:
1024 tokens took 1.5 times as long at once as in pieces at the sizes of Qwen3-Next, and twice as long for Mamba-2 with
128 heads of 64 x 128.
"""


@recorded_whole
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
    """See `kernels/delta_rule.py`: o = S^T q = S_before^T (a q) + (k q) u."""
    if matrix.dtype is not torch.float32:
        return delta_rule.delta_step.reference(q, k, v, a, b, log_rate, time_bias, matrix, at, strongest, norm)
    decay, strength = delta_gates(a, b, log_rate, time_bias, strongest)
    queries, keys = heads_of(q, k, v.shape[1])
    values, kept = v.float(), by_channel(decay).exp().unsqueeze(-1)
    asked, overlap = torch.stack((keys, queries), dim=-2) * kept.mT, (queries * keys).sum(dim=-1, keepdim=True)
    out = torch.empty_like(values)
    for row, entry in enumerate(at.tolist()):
        state = matrix[entry]
        # One product reads the state for the key and for the query. What the query would read of the new value is
        # added behind it, as (k q) u.
        said = asked[row] @ state
        new = (values[row] - said[:, 0]).mul_(strength[row].unsqueeze(-1))
        state.mul_(kept[row]).addcmul_(keys[row].unsqueeze(-1), new.unsqueeze(-2))
        torch.addcmul(said[:, 1], overlap[row], new, out=out[row])
    return through(norm, out.to(v.dtype))


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
    """See `kernels/delta_rule.py`, which computes each piece."""
    if matrix.dtype is not torch.float32:
        return delta_rule.delta_runs.reference(q, k, v, a, b, log_rate, time_bias, matrix, runs, strongest)
    decay, strength = delta_gates(a, b, log_rate, time_bias, strongest)

    def run(part: slice, entry: int) -> Tensor:
        return torch.cat([delta_run(q[i], k[i], v[i], decay[i], strength[i], matrix, entry) for i in pieces(part)])

    return take_runs(runs, v.new_empty(v.shape), matrix, run)


def pieces(part: slice) -> Iterator[slice]:
    """Yields slices of at most PIECE tokens each, in order."""
    return (slice(start, min(start + PIECE, part.stop)) for start in range(part.start, part.stop, PIECE))


@recorded_whole
def scan_step(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    time: Tensor,
    time_bias: Tensor,
    log_rate: Tensor,
    skip: Tensor,
    matrix: Tensor,
    at: Tensor,
) -> Tensor:
    """See `kernels/state_space.py`: y = S^T c + D x = a S_before^T c + (b c) d x + D x, with a = exp(d A)."""
    if matrix.dtype is not torch.float32:
        return state_space.scan_step.reference(x, b, c, time, time_bias, log_rate, skip, matrix, at)
    steps, rate = F.softplus(time.float() + time_bias), -log_rate.exp()
    shared = x.shape[1] // b.shape[1]
    write, read = b.float(), c.float()
    overlap = (write * read).sum(dim=-1).repeat_interleave(shared, dim=1).unsqueeze(-1)
    write, read = write.repeat_interleave(shared, dim=1), read.repeat_interleave(shared, dim=1)
    inputs, kept = x.float(), (steps * rate).exp()[..., None, None]
    scaled = inputs * steps.unsqueeze(-1)
    out = torch.addcmul(scaled * overlap, inputs, skip.unsqueeze(-1))
    for row, entry in enumerate(at.tolist()):
        state = matrix[entry]
        said = (read[row].unsqueeze(-2) @ state).squeeze(-2)
        state.mul_(kept[row]).addcmul_(write[row].unsqueeze(-1), scaled[row].unsqueeze(-2))
        out[row].addcmul_(said, kept[row, :, 0])
    return out.to(x.dtype)


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
    """See `kernels/state_space.py`, which computes each piece."""
    if matrix.dtype is not torch.float32:
        return state_space.scan_runs.reference(x, b, c, time, time_bias, log_rate, skip, matrix, runs)
    steps, rate = F.softplus(time.float() + time_bias), -log_rate.exp()

    def run(part: slice, entry: int) -> Tensor:
        return torch.cat([scan_run(x[i], b[i], c[i], steps[i], rate, skip, matrix, entry) for i in pieces(part)])

    return take_runs(runs, x.new_empty(x.shape), matrix, run)
