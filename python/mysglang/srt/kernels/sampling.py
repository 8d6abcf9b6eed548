"""From logits to tokens: forbidding and drawing them, their log-probabilities, and the newest token of each slot.

Drawing is deterministic: the only randomness is the number in [0, 1) that the caller gives for each row. A row's tokens
are ranked by probability, the lower id first among equals. Drawing uses the distribution after temperature. A token may
be drawn if it is among the top_k, if those ranked before it hold less than top_p, and if it has at least min_p times
the probability of the first. One of the remaining tokens is drawn by inverting their cumulative sum, in order of ids.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op


class Filters(NamedTuple):
    """Which tokens may be drawn, by row. None: no row has that filter."""

    top_k: Tensor | None = None
    """[S] int32"""
    top_p: Tensor | None = None
    """[S] float32"""
    min_p: Tensor | None = None
    """[S] float32"""

    @property
    def given(self) -> bool:
        """True if at least one filter is set."""
        return any(values is not None for values in self)

    def of(self, rows: slice) -> Filters:
        """Returns the filters of the selected rows only."""
        return Filters(*(None if values is None else values[rows] for values in self))


def _greedy_tokens(logits: Tensor) -> Tensor:
    """Returns the most likely token of each row, the lowest id among equals: [S, vocab] -> [S] int64; -1 if a logit is
    not finite.
    """
    finite = logits.sum(dim=-1, dtype=torch.float32).isfinite()
    return torch.where(finite, logits.argmax(dim=-1), -1)


def _draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """Draws tokens, [S] int64, from float32 logits [S, vocab], where -inf forbids a token. A row with NaN gets any
    token.

    uniforms: [S] float64; temperature: [S] float32.
    """
    weights = weights_of(logits, temperature)
    if filters.given:
        ranked, ids = weights.sort(dim=-1, descending=True, stable=True)
        allowed = torch.zeros_like(weights, dtype=torch.bool)
        allowed.scatter_(1, ids, allowed_ranks(ranked, weights.sum(dim=-1), filters))
        weights = weights.masked_fill_(~allowed, 0.0)
    return invert(weights, uniforms)


def weights_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """Returns weights proportional to the probabilities, float64 [S, vocab]; the likeliest token of a row has 1."""
    scaled = logits / temperature[:, None]
    return (scaled - scaled.amax(dim=-1, keepdim=True)).exp_().double()


def allowed_ranks(ranked: Tensor, total: Tensor, filters: Filters) -> Tensor:
    """Returns which of the weights in falling order [S, n] the filters leave: in each row the first one or more."""
    top_k, top_p, min_p = filters
    allowed = torch.ones_like(ranked, dtype=torch.bool)
    if top_k is not None:
        allowed &= torch.arange(ranked.shape[1], device=ranked.device) < top_k[:, None]
    if top_p is not None:
        before = ranked.cumsum(dim=-1) - ranked
        allowed &= before < (top_p.double() * total)[:, None]
    if min_p is not None:
        allowed &= ranked >= min_p.double()[:, None] * ranked[:, :1]
    return allowed


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Returns the token in whose share of the cumulative sum the number falls; tokens of weight 0 have no share."""
    shares = weights.cumsum(dim=-1)
    total = shares[:, -1]
    # Rounding must not carry the target up to the total, after the last token with a share.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(shares, target[:, None], right=True).squeeze(1)
    return found.clamp(max=weights.shape[1] - 1)


greedy_tokens = Op(
    "greedy_tokens",
    reference=_greedy_tokens,
    cpu="mysglang.srt.kernels.cpu.native:greedy_tokens",
    cuda="mysglang.srt.kernels.cuda.sampling:greedy_tokens",
)
draw_tokens = Op(
    "draw_tokens",
    reference=_draw_tokens,
    cpu=("mysglang.srt.kernels.cpu.native:draw_tokens", "mysglang.srt.kernels.cpu.sampling:draw_tokens"),
    cuda="mysglang.srt.kernels.cuda.sampling:draw_tokens",
    invariant={
        "cpu": ("mysglang.srt.kernels.cpu.native:draw_tokens", "mysglang.srt.kernels.cpu.invariant:draw_tokens"),
        "cuda": "mysglang.srt.kernels.cuda.sampling:invariant_draw_tokens",
    },
)


def _apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set forbidden logits to -inf, in place. Token i of row rows[c] is allowed if its bit in bits[c] is set.

    logits: [S, vocab] floating; rows: [C] int64, distinct; bits: [C, >= vocab / 32] int32, lowest bit first.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    allowed = bits.index_select(1, ids >> 5) >> (ids & 31).to(torch.int32) & 1
    logits[rows] = logits[rows].masked_fill_(allowed == 0, float("-inf"))


apply_token_bitmask = Op(
    "apply_token_bitmask",
    reference=_apply_token_bitmask,
    cpu="mysglang.srt.kernels.cpu.sampling:apply_token_bitmask",
    cuda="mysglang.srt.kernels.cuda.sampling:apply_token_bitmask",
)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Computes log-probabilities: [N, vocab] of any dtype -> float32 [N, vocab]."""
    return logits.float().log_softmax(dim=-1)


def _most_likely(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the [N, count] highest values in descending order, and their ids, int64. The order and choice among
    equals is undefined.
    """
    top = logprobs.topk(count, dim=-1)
    return top.values, top.indices


log_probabilities = Op(
    "log_probabilities",
    reference=_log_probabilities,
    invariant={
        "cpu": "mysglang.srt.kernels.cpu.invariant:log_probabilities",
        "cuda": "mysglang.srt.kernels.cuda.sampling:invariant_log_probabilities",
    },
)
most_likely = Op(
    "most_likely",
    reference=_most_likely,
    invariant={
        "cpu": "mysglang.srt.kernels.cpu.invariant:most_likely",
        "cuda": "mysglang.srt.kernels.cuda.sampling:invariant_most_likely",
    },
)


def _resolve_tokens(input_ids: Tensor, slots: Tensor, newest: Tensor) -> Tensor:
    """Returns [T] int64 ids, with newest[slots[t]] in place of each negative one.

    input_ids, slots: [T] int64. newest: [slots] int64.
    """
    return torch.where(input_ids < 0, newest.index_select(0, slots), input_ids)


def _record_tokens(newest: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """Stores tokens: newest[slots[r]] = max(tokens[r], 0). All int64; slots [R] are distinct except padding."""
    newest.index_copy_(0, slots, tokens.clamp(min=0))


resolve_tokens = Op(
    "resolve_tokens", reference=_resolve_tokens, cuda="mysglang.srt.kernels.cuda.sampling:resolve_tokens"
)
record_tokens = Op("record_tokens", reference=_record_tokens, cuda="mysglang.srt.kernels.cuda.sampling:record_tokens")
