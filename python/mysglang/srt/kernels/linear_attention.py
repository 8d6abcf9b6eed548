"""Mixers that keep a state for each row: gated delta nets and Mamba-2, for one token of many rows or many of some rows.

States lie in stores of N entries; `at` or `runs` name the entry of each row. The last entry belongs to rows without a
state: rows that name it may share it, and what they get is unspecified.

**Gated delta rule**: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv
2412.06464). With the state S [key_dim, value_dim] of a head, and for each token a query q, a key k, a value v, a decay
a and a strength b:

    S' = a S                      forget
    u  = b (v - S'^T k)           what the state does not yet say of the key
    S  = S' + k u^T               write it
    o  = S^T q                    read

Queries and keys have length 1, queries are divided by sqrt(key_dim). A short convolution comes before it. The decay
may be a number for each channel of the key, each of which forgets its row of S: Kimi Delta Attention (Kimi Team, "Kimi
Linear", arXiv 2510.26692, section 3).

**Mamba-2**: Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060). With the state S [state_size, head_dim] of a head,
and for each token an input x, a time step d, and the rows b and c [state_size] of the head's group:

    S = exp(d A) S + b (d x)^T        forget, and write
    y = S^T c + D x                   read

A (negative) and D are numbers of a head. It is the gated delta rule without what the state says already, so a chunk of
tokens needs no triangular system.

All is computed in float32; kernels for CUDA multiply tiles in the dtype of the inputs and add in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.op import Op

CHUNK = 64
"""Tokens that are computed together: chunks begin at the first token of a call."""
NORM_EPS = 1e-6


class Runs(Protocol):
    """Consecutive new tokens of some rows, which lie among the tokens of a step."""

    @property
    def spans(self) -> Iterable[tuple[int, int, int, int | None]]:
        """First token, the one after the last, the entry of the row's state before and after, and the entry that gets
        a copy of the state after these tokens, or None. Spans of one row follow one another.
        """
        ...

    @property
    def cuts(self) -> Tensor:
        """[S, 5] int32, the spans on the device: first token, the one after the last, the row's first token, the entry
        of its state, and the entry that gets a copy of the state, or -1.
        """
        ...

    @property
    def rows(self) -> Tensor:
        """[P + 1] int32: the first span of each row, and the number of spans."""
        ...

    @property
    def turns(self) -> Tensor:
        """[S, 5] int32, `cuts` in another order: the first spans of all rows, the second spans, and so on. A table for
        captured steps has spans without tokens behind each of these groups.
        """
        ...

    @property
    def turn_sizes(self) -> Sequence[int]:
        """How many rows have a first span, a second one, and so on, and in `turns` those without tokens with them."""
        ...

    @property
    def numbers(self) -> Tensor:
        """[S + 1] int32: 0, 1, 2, …"""
        ...

    @property
    def chunks(self) -> Tensor:
        """[C, 2] int32: the first token of each CHUNK tokens of a span, the last of which may be shorter; and the
        number of the span. Chunks that begin behind their span have no tokens.
        """
        ...


def take_runs(runs: Runs, out: Tensor, state: Tensor, compute: Callable[[slice, int], Tensor]) -> Tensor:
    """Fills `out` at the tokens of each span with what `compute` makes of them from the state at an entry, which it
    updates, and copies states out. Returns `out`; other tokens are left as they are.
    """
    for start, end, entry, checkpoint in runs.spans:
        out[start:end] = compute(slice(start, end), entry)
        if checkpoint is not None:
            state[checkpoint] = state[entry]
    return out


def _conv_step(
    x: Tensor, weight: Tensor, recent: Tensor, at: Tensor, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """Returns a causal depthwise convolution of one new token of each of R rows, and silu of it. Returns [R, channels]
    in x's dtype.

    x: [R, channels]. weight: [channels, kernel]. recent: [N, kernel - 1, channels], the inputs before, which lose the
    oldest and get x. at: [R] int64 entries of `recent`, distinct but for padding. bias: [channels].
    """
    seen = torch.cat((recent.index_select(0, at), x.to(recent.dtype).unsqueeze(1)), dim=1)
    recent.index_copy_(0, at, seen[:, 1:])
    return _convolved(seen, weight, bias, silu).squeeze(1).to(x.dtype)


def _conv_runs(
    x: Tensor, weight: Tensor, recent: Tensor, runs: Runs, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """Returns the convolution of consecutive tokens of some rows. x: [T, channels]. Returns the same shape; tokens in
    no run are zeros, since layers multiply the result with weights, and products want numbers.
    """

    def run(part: slice, entry: int) -> Tensor:
        tokens = x[part]
        seen = torch.cat((recent[entry], tokens.to(recent.dtype)))
        recent[entry] = seen[len(tokens) :]
        return _convolved(seen.unsqueeze(0), weight, bias, silu).squeeze(0).to(x.dtype)

    return take_runs(runs, x.new_zeros(x.shape), recent, run)


def _convolved(seen: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """Convolves over the tokens: [R, kernel - 1 + T, channels] -> [R, T, channels] float32."""
    kernel = weight.shape[1]
    tokens = seen.shape[1] - kernel + 1
    inputs, factors = seen.float(), weight.float()
    total = inputs[:, :tokens] * factors[:, 0]
    for tap in range(1, kernel):
        total.addcmul_(inputs[:, tap : tap + tokens], factors[:, tap])
    if bias is not None:
        total += bias.float()
    return F.silu(total) if silu else total


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
) -> Tensor:
    """Returns the gated delta rule for one new token of each of R rows. Returns [R, value_heads, value_dim] in v's
    dtype.

    q, k: [R, key_heads, key_dim], neither of length 1 nor scaled. v: [R, value_heads, value_dim]; value_heads is a
    multiple of key_heads. a, b: [R, value_heads] in any dtype, what decay and strength are made of (`delta_gates`).
    log_rate, time_bias: [value_heads] float32. With a decay for each channel of the key, a is [R, value_heads, key_dim]
    and time_bias [value_heads, key_dim]. matrix: [N, value_heads, key_dim, value_dim] float32, the states, which
    are updated. at: [R] int64 entries of `matrix`, distinct except for rows without a state. strongest: upper
    bound of strengths.
    """
    decay, strength = delta_gates(a, b, log_rate, time_bias, strongest)
    queries, keys = heads_of(q, k, v.shape[1])
    state = matrix.index_select(0, at)
    state.mul_(by_channel(decay).exp().unsqueeze(-1))
    said = (keys.unsqueeze(-2) @ state).squeeze(-2)
    new = (v.float() - said) * strength.unsqueeze(-1)
    state.addcmul_(keys.unsqueeze(-1), new.unsqueeze(-2))
    matrix.index_copy_(0, at, state)
    return (queries.unsqueeze(-2) @ state).squeeze(-2).to(v.dtype)


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
    queries, keys, values = (_in_chunks(x, rest) for x in (queries, keys, v.float()))
    log_decay, factor = (_in_chunks(x, rest) for x in (by_channel(decay), strength.unsqueeze(-1)))
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
    state, out = matrix[at], torch.empty_like(values)
    for chunk in range(len(values)):
        new = written[chunk] - taken[chunk] @ state
        out[chunk] = queries[chunk] @ state + inside[chunk] @ new
        state = state * whole[chunk] + to_end[chunk].mT @ new
    matrix[at] = state
    return out.transpose(1, 2).flatten(0, 1)[:tokens].to(v.dtype)


SUBCHUNK = 16
"""Tokens of a chunk whose decays by channel are computed pair by pair."""


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


def _in_chunks(x: Tensor, rest: int) -> Tensor:
    """Cuts tokens into chunks: [T, heads or groups, D] -> [chunks, heads or groups, CHUNK, D], with `rest` zeros at the
    end.
    """
    padded = F.pad(x, (0, 0, 0, 0, 0, rest))
    return padded.reshape(-1, CHUNK, *x.shape[1:]).transpose(1, 2).contiguous()


def _gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, sigmoid: bool = False) -> Tensor:
    """Computes rms_norm(x) * weight * silu(gate) over the last dimension, in float32. x, gate: [..., D]; weight: [D].

    The normed value is rounded to x's dtype before it meets the weight, as models are trained.

    sigmoid: the factor is sigmoid(gate), and only the result is rounded, as in Kimi Linear.
    """
    inputs = x.float()
    normed = inputs * torch.rsqrt(inputs.square().mean(dim=-1, keepdim=True) + eps)
    if sigmoid:
        return (weight.float() * normed * gate.float().sigmoid()).to(x.dtype)
    normed = normed.to(x.dtype)
    return (weight * normed * F.silu(gate.float())).to(x.dtype)


conv_step = Op("conv_step", reference=_conv_step, cuda="mysglang.srt.kernels.cuda.short_convolution:conv_step")
conv_runs = Op("conv_runs", reference=_conv_runs, cuda="mysglang.srt.kernels.cuda.short_convolution:conv_runs")
delta_step = Op(
    "delta_step",
    reference=_delta_step,
    cpu="mysglang.srt.kernels.cpu.linear_attention:delta_step",
    cuda="mysglang.srt.kernels.cuda.delta_rule:delta_step",
)
delta_runs = Op(
    "delta_runs",
    reference=_delta_runs,
    cpu="mysglang.srt.kernels.cpu.linear_attention:delta_runs",
    cuda="mysglang.srt.kernels.cuda.delta_rule:delta_runs",
)
gated_rms_norm = Op(
    "gated_rms_norm", reference=_gated_rms_norm, cuda="mysglang.srt.kernels.cuda.gated_norm:gated_rms_norm"
)


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
    matrix: [N, heads, state_size, head_dim] float32, the states, which are updated. at: [R] int64 entries of `matrix`,
    distinct except for rows without a state.
    """
    steps, rate = F.softplus(time.float() + time_bias), -log_rate.exp()
    write, read = _of_heads(b, c, x.shape[1])
    inputs = x.float()
    state = matrix.index_select(0, at)
    state.mul_((steps * rate).exp()[..., None, None])
    state.addcmul_(write.unsqueeze(-1), (inputs * steps.unsqueeze(-1)).unsqueeze(-2))
    matrix.index_copy_(0, at, state)
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
    write, read = _in_chunks(b.float(), rest), _in_chunks(c.float(), rest)
    values = _in_chunks((x.float() * time.unsqueeze(-1)).reshape(tokens, groups, -1), rest)
    log_decay = _in_chunks((time * rate).reshape(tokens, groups, -1), rest).cumsum(dim=2).transpose(2, 3)
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
    state = matrix[at].view(groups, -1, *matrix.shape[2:]).transpose(1, 2).contiguous()
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


def _gated_group_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float, groups: int) -> Tensor:
    """Computes rms_norm(x * silu(gate)) * weight, in float32. x, gate: [N, D], of which each of `groups` parts is
    normed by itself; weight: [D]. The normed value is rounded to x's dtype before it is multiplied with the weight.
    """
    gated = x.float() * F.silu(gate.float())
    parts = gated.view(len(x), groups, x.shape[-1] // groups)
    normed = parts * torch.rsqrt(parts.square().mean(dim=-1, keepdim=True) + eps)
    return weight * normed.view_as(x).to(x.dtype)


scan_step = Op(
    "scan_step",
    reference=_scan_step,
    cpu="mysglang.srt.kernels.cpu.linear_attention:scan_step",
    cuda="mysglang.srt.kernels.cuda.state_space:scan_step",
)
scan_runs = Op(
    "scan_runs",
    reference=_scan_runs,
    cpu="mysglang.srt.kernels.cpu.linear_attention:scan_runs",
    cuda="mysglang.srt.kernels.cuda.state_space:scan_runs",
)
gated_group_norm = Op(
    "gated_group_norm", reference=_gated_group_norm, cuda="mysglang.srt.kernels.cuda.gated_norm:gated_group_norm"
)


def _copy_states(sources: Tensor, targets: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copies states: in each buffer, [entries, …] dense, entry targets[i] becomes what sources[i] was before the call.
    A negative source is a state of zeros.

    sources, targets: [N] int64; the targets are distinct.
    """
    empty = sources < 0
    sources = sources.clamp(min=0)
    for buffer in buffers:
        states = buffer.index_select(0, sources)
        # Filled instead of multiplied by 0, because a free state may contain NaN. Indexing by `empty` would wait for
        # the device.
        states.masked_fill_(empty.view(-1, *[1] * (buffer.dim() - 1)), 0)
        buffer.index_copy_(0, targets, states)


copy_states = Op("copy_states", reference=_copy_states, cuda="mysglang.srt.kernels.cuda.states:copy_states")
