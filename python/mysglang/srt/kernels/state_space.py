"""Mamba-2's recurrence for one token of many rows, or for many of some rows. See `states.py` for entries and runs.

Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060). With the state S [state_size, head_dim] of a head,
and for each token an input x, a time step d, and the rows b and c [state_size] of the head's group:

    S = exp(d A) S + b (d x)^T        forget, and write
    y = S^T c + D x                   read

A (negative) and D are numbers of a head. The recurrence is the gated delta rule without what the state says already, so
a chunk of tokens needs no triangular system.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.states import CHUNK, Runs, in_chunks, take_runs


def _scan_step(
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
    """Updates the states with one new token of each of R rows. Returns [R, heads, head_dim] in x's dtype.

    x: [R, heads, head_dim]. b, c: [R, groups, state_size]; heads are in groups, side by side. time: [R, heads] in any
    dtype; d = softplus(time + time_bias). time_bias, log_rate, skip: [heads] float32; A = -exp(log_rate), D = skip.
    matrix: [N, heads, state_size, head_dim], the states, which are computed in float32 and updated.
    at: [R] int64 entries of `matrix`, distinct except for rows without a state.
    """
    steps, rate = F.softplus(time.float() + time_bias), -log_rate.exp()
    write, read = _of_heads(b, c, x.shape[1])
    inputs = x.float()
    state = matrix.index_select(0, at).float()
    state.mul_((steps * rate).exp()[..., None, None])
    state.addcmul_(write.unsqueeze(-1), (inputs * steps.unsqueeze(-1)).unsqueeze(-2))
    matrix.index_copy_(0, at, state.to(matrix.dtype))
    return ((read.unsqueeze(-2) @ state).squeeze(-2) + inputs * skip.unsqueeze(-1)).to(x.dtype)


def _scan_runs(
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
    """Returns the recurrence for consecutive tokens of some rows; T replaces R in the shapes. Tokens in no run are
    unspecified in the result.
    """
    steps, rate = F.softplus(time.float() + time_bias), -log_rate.exp()

    def run(part: slice, entry: int) -> Tensor:
        return scan_run(x[part], b[part], c[part], steps[part], rate, skip, matrix, entry)

    return take_runs(runs, x.new_empty(x.shape), matrix, run)


def scan_run(
    x: Tensor, b: Tensor, c: Tensor, time: Tensor, rate: Tensor, skip: Tensor, matrix: Tensor, at: int
) -> Tensor:
    """Returns the recurrence for T consecutive tokens of the row at one entry. time: [T, heads] float32, d. rate:
    [heads], A.

    Within a chunk (section 6 of the paper), with the decay e_i from the chunk's beginning to token i, and
    E_ij = e_i / e_j for j <= i:   Y = (E C B^T) X + e C S,   S = e_last S + (e_last / e B)^T X,   where X holds d x.
    """
    tokens, heads, dim = x.shape
    groups = b.shape[1]
    rest = -tokens % CHUNK
    # Tokens of padding write nothing and let nothing be forgotten. [chunks, groups, CHUNK, …]; heads are one more
    # dimension of what each has for itself.
    write, read = in_chunks(b.float(), rest), in_chunks(c.float(), rest)
    values = in_chunks((x.float() * time.unsqueeze(-1)).reshape(tokens, groups, -1), rest)
    log_decay = in_chunks((time * rate).reshape(tokens, groups, -1), rest).cumsum(dim=2).transpose(2, 3)
    per_head = log_decay.unsqueeze(-1)
    # [chunks, groups, heads of the group, CHUNK, CHUNK]: above the diagonal a quotient could overflow.
    pairs = (per_head - log_decay.unsqueeze(-2)).tril().exp_().tril_()
    pairs.mul_((read @ write.mT).unsqueeze(2))
    apart = values.view(*values.shape[:3], -1, dim).transpose(2, 3)
    out = pairs @ apart
    since_start, whole = per_head.exp(), log_decay[..., -1:].exp()
    kept = (apart * (log_decay[..., -1:, None] - per_head).exp()).transpose(2, 3).flatten(3)
    added = write.mT @ kept
    # [groups, state_size, heads of the group, head_dim]
    state = matrix[at].float().view(groups, -1, *matrix.shape[2:]).transpose(1, 2).contiguous()
    for chunk in range(len(out)):
        before = (read[chunk] @ state.flatten(2)).view(groups, CHUNK, -1, dim).transpose(1, 2)
        out[chunk].addcmul_(since_start[chunk], before)
        state = state * whole[chunk].unsqueeze(1) + added[chunk].view_as(state)
    matrix[at] = state.transpose(1, 2).flatten(0, 1)
    found = out.permute(0, 3, 1, 2, 4).reshape(-1, heads, dim)[:tokens]
    result: Tensor = found.addcmul(x.float(), skip.unsqueeze(-1)).to(x.dtype)
    return result


def _of_heads(b: Tensor, c: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Repeats groups for their heads: [R, groups, state_size] each -> [R, heads, state_size] float32 each."""
    shared = heads // b.shape[1]
    return b.float().repeat_interleave(shared, dim=1), c.float().repeat_interleave(shared, dim=1)


scan_step = Op(
    "scan_step",
    reference=_scan_step,
    cpu="mysglang.srt.kernels.cpu.states:scan_step",
    cuda="mysglang.srt.kernels.cuda.state_space:scan_step",
)
scan_runs = Op(
    "scan_runs",
    reference=_scan_runs,
    cpu="mysglang.srt.kernels.cpu.states:scan_runs",
    cuda=(
        "mysglang.srt.kernels.cuda.hopper_scan:scan_runs",
        "mysglang.srt.kernels.cuda.state_space:scan_runs",
    ),
)
