"""The gated delta rule for one token of many rows, or for many of some rows. See `states.py` for entries and runs.

Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv
2412.06464). With the state S [key_dim, value_dim] of a head, and for each token a query q, a key k, a value v, a decay
a and a strength b:

    S' = a S                      forget
    u  = b (v - S'^T k)           what the state does not yet say of the key
    S  = S' + k u^T               write it
    o  = S^T q                    read

Queries and keys have length 1, queries are divided by sqrt(key_dim). A short convolution comes before it. The decay
may be a number for each channel of the key, each of which forgets its row of S: Kimi Delta Attention (Kimi Team, "Kimi
Linear", arXiv 2510.26692, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.gated_norm import gated_rms_norm
from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.states import CHUNK, Runs, in_chunks, take_runs

NORM_EPS = 1e-6
SUBCHUNK = 16
"""Tokens of a chunk whose decays by channel are computed pair by pair."""


def _delta_step(
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
    """Returns the gated delta rule for one new token of each of R rows. Returns [R, value_heads, value_dim] in v's
    dtype.

    q, k: [R, key_heads, key_dim], neither of length 1 nor scaled. v: [R, value_heads, value_dim]; value_heads is a
    multiple of key_heads. a, b: [R, value_heads] in any dtype, what decay and strength are made of (`delta_gates`).
    log_rate, time_bias: [value_heads] float32. With a decay for each channel of the key, a is [R, value_heads, key_dim]
    and time_bias [value_heads, key_dim]. matrix: [N, value_heads, key_dim, value_dim], the states, which are
    computed in float32 and updated. at: [R] int64 entries of `matrix`, distinct except for rows without a state.
    strongest: upper bound of strengths. norm: what the result goes through; None: it is returned as it is.
    """
    decay, strength = delta_gates(a, b, log_rate, time_bias, strongest)
    queries, keys = heads_of(q, k, v.shape[1])
    state = matrix.index_select(0, at).float()
    state.mul_(by_channel(decay).exp().unsqueeze(-1))
    said = (keys.unsqueeze(-2) @ state).squeeze(-2)
    new = (v.float() - said) * strength.unsqueeze(-1)
    state.addcmul_(keys.unsqueeze(-1), new.unsqueeze(-2))
    matrix.index_copy_(0, at, state.to(matrix.dtype))
    read = (queries.unsqueeze(-2) @ state).squeeze(-2).to(v.dtype)
    return read if norm is None else gated_rms_norm.reference(read, *norm)


class GatedNorm(NamedTuple):
    """The norm and the gate of what heads read, as `kernels.gated_norm.gated_rms_norm` takes them."""

    weight: Tensor
    """[value_dim]"""
    gate: Tensor
    """[R, value_heads, value_dim]"""
    eps: float


def through(norm: GatedNorm | None, x: Tensor) -> Tensor:
    """Returns x [R, value_heads, value_dim] after the norm, if there is one."""
    return x if norm is None else gated_rms_norm(x, *norm)


def delta_gates(
    a: Tensor, b: Tensor, log_rate: Tensor, time_bias: Tensor, strongest: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns the logarithm of the decay, at most 0, in the shape of a, and the strength [N, value_heads]: float32.

    Strengths lie between 0 and `strongest`. With 2 the state may change its sign along a key: Grazzi et al., "Unlocking
    State-Tracking in Linear RNNs Through Negative Eigenvalues" (arXiv 2411.12537).
    """
    rate = log_rate.exp().view(-1, *[1] * (a.dim() - 2))
    return -rate * F.softplus(a.float() + time_bias), b.float().sigmoid() * strongest


def by_channel(decay: Tensor) -> Tensor:
    """Reshapes decays by head [N, value_heads], or by channel of the key, to [N, value_heads, 1 or key_dim]."""
    return decay.unsqueeze(-1) if decay.dim() == 2 else decay


def _delta_runs(
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
    """Returns the gated delta rule for consecutive tokens of some rows; T replaces R in the shapes. Tokens in no run
    are unspecified in the result.
    """
    decay, strength = delta_gates(a, b, log_rate, time_bias, strongest)

    def run(part: slice, entry: int) -> Tensor:
        return delta_run(q[part], k[part], v[part], decay[part], strength[part], matrix, entry)

    return take_runs(runs, v.new_empty(v.shape), matrix, run)


def delta_run(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor, matrix: Tensor, at: int) -> Tensor:
    """Returns the gated delta rule for T consecutive tokens of the row at one entry. decay, strength: see
    `delta_gates`.

    Within a chunk the tokens' updates are a triangular system (section 3.3 of the paper): with the decay c_i from the
    chunk's beginning to token i and D_ij = c_i / c_j for j <= i,

    With a decay for each channel, c_i and D_ij are vectors that stand inside of the products over channels.

        (I + tril(b D K K^T, -1)) U = b V                 what the tokens would write were the state 0
        (I + tril(b D K K^T, -1)) W = b c K               how much of the state they take away from it
        N = U - W S,   O = c Q S + tril(D Q K^T) N,   S = c_last S + (c_last / c K)^T N
    """
    tokens, heads = v.shape[:2]
    queries, keys = heads_of(q, k, heads)
    rest = -tokens % CHUNK
    # [chunks, heads, CHUNK, …]; the tokens of padding write nothing and let nothing be forgotten.
    queries, keys, values = (in_chunks(x, rest) for x in (queries, keys, v.float()))
    log_decay, factor = (in_chunks(x, rest) for x in (by_channel(decay), strength.unsqueeze(-1)))
    log_decay = log_decay.cumsum(dim=2)
    since_start = log_decay.exp()
    seen_by_keys, inside = _decayed_products((keys, queries), keys, log_decay)
    system = (seen_by_keys * factor).tril(-1)
    # Inverting the system and multiplying is faster than solving it for as many columns as values and keys have.
    one = torch.eye(CHUNK, device=v.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    written, taken = inverse @ (values * factor), inverse @ (keys * since_start * factor)
    queries = queries * since_start
    to_end = keys * (log_decay[:, :, -1:] - log_decay).exp()
    whole = since_start[:, :, -1:].mT
    state, out = matrix[at].float(), torch.empty_like(values)
    for chunk in range(len(values)):
        new = written[chunk] - taken[chunk] @ state
        out[chunk] = queries[chunk] @ state + inside[chunk] @ new
        state = state * whole[chunk] + to_end[chunk].mT @ new
    matrix[at] = state
    return out.transpose(1, 2).flatten(0, 1)[:tokens].to(v.dtype)


def _decayed_products(rows: Sequence[Tensor], keys: Tensor, log_decay: Tensor) -> list[Tensor]:
    """Returns sum_d x_id exp(l_id - l_jd) k_jd for j <= i, and 0 for j > i: [chunks, heads, CHUNK, CHUNK] for each x.

    rows, keys: [chunks, heads, CHUNK, key_dim]. log_decay: l, [chunks, heads, CHUNK, 1 or key_dim], which only falls.
    """
    if log_decay.shape[-1] == 1:
        # Above the diagonal a quotient could overflow.
        pairs = (log_decay - log_decay.mT).tril().exp().tril()
        return [x @ keys.mT * pairs for x in rows]
    found = [keys.new_zeros(*keys.shape[:2], CHUNK, CHUNK) for _ in rows]
    for start in range(0, CHUNK, SUBCHUNK):
        own = slice(start, start + SUBCHUNK)
        here = log_decay[:, :, own]
        # Pairs of tokens of the same few, one after another, as exp(-l_j) alone could overflow.
        pairs = (here.unsqueeze(-2) - here.unsqueeze(-3)).clamp_(max=0).exp_() * keys[:, :, own].unsqueeze(-3)
        for out, x in zip(found, rows, strict=True):
            out[:, :, own, own] = (pairs @ x[:, :, own].unsqueeze(-1)).squeeze(-1).tril()
        if start:
            # Tokens before: from each to the token before these, and from there on. Neither factor exceeds 1.
            between = log_decay[:, :, start - 1 : start]
            earlier = keys[:, :, :start] * (between - log_decay[:, :, :start]).exp()
            since = (here - between).exp()
            for out, x in zip(found, rows, strict=True):
                out[:, :, own, :start] = (x[:, :, own] * since) @ earlier.mT
    return found


def heads_of(q: Tensor, k: Tensor, value_heads: int) -> tuple[Tensor, Tensor]:
    """Returns queries and keys, both normed to length 1 in float32 and repeated for each value head: [R, value_heads,
    key_dim]. Queries are also scaled.
    """
    shared = value_heads // q.shape[1]
    q, k = (x.float() * torch.rsqrt(x.float().square().sum(dim=-1, keepdim=True) + NORM_EPS) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    return q.repeat_interleave(shared, dim=1), k.repeat_interleave(shared, dim=1)


delta_step = Op(
    "delta_step",
    reference=_delta_step,
    cpu="mysglang.srt.kernels.cpu.states:delta_step",
    cuda=(
        "mysglang.srt.kernels.cuda.hopper_delta:delta_step",
        "mysglang.srt.kernels.cuda.delta_rule:delta_step",
    ),
    # The number of rows decides which kernel of Hopper's is used.
    invariant={"cuda": "mysglang.srt.kernels.cuda.delta_rule:delta_step"},
)
delta_runs = Op(
    "delta_runs",
    reference=_delta_runs,
    cpu="mysglang.srt.kernels.cpu.states:delta_runs",
    cuda=(
        "mysglang.srt.kernels.cuda.hopper_delta:delta_runs",
        "mysglang.srt.kernels.cuda.delta_rule:delta_runs",
    ),
)
