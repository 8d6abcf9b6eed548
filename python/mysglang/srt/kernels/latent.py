"""Ops around attention over latent rows (DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1).

Before and after it, and attention over keys and values of heads that are made of latent rows:

    a piece   | keys of row 0 | of row 3 | of row 4 ...    so many tokens that keys and values of heads have room
              a row with more keys goes on in the next piece, whose result is merged with the one before
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from mysglang.srt.kernels.gemm import heads_linear
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.rotary import rope


def _norm_and_turn(
    q: Tensor, rows: Tensor, gain: Tensor, eps: float, positions: Tensor, cos_sin: Tensor, interleaved: bool
) -> None:
    """Norms the latent part of `rows`, and rotates their rotary part and q, all in place.

    q: [T, num_heads, rope_dim], maybe a slice; rows: [T, latent_dim + rope_dim]; gain: [latent_dim]. The rest is as of
    `rope`; positions must not come from a kernel that may still be running.
    """
    latent = rows[:, : len(gain)]
    latent.copy_(rms_norm(latent, gain, eps))
    rope(q, rows[:, len(gain) :], positions, cos_sin, interleaved)


def _absorb_queries(q: Tensor, up_keys: Tensor) -> Tensor:
    """Turns q [T, num_heads, key_dim + rope_dim] into queries over latent rows, [T, num_heads * (latent_dim +
    rope_dim)].

    up_keys: [num_heads, latent_dim, key_dim], the first part of a head's query is multiplied with its matrix.
    """
    key_dim = up_keys.shape[2]
    return torch.cat((heads_linear(q[..., :key_dim], up_keys), q[..., key_dim:]), dim=-1).flatten(1)


class Part(IntEnum):
    """Columns of a piece, which has a line of int32 for each row of the batch that has keys in it."""

    SLOT = 0
    """Row of the page table."""
    TOKEN = 1
    """The row's first new token among those of the step."""
    NEW = 2
    """How many new tokens the row has."""
    FIRST = 3
    """Position of the first new token."""
    BEGIN = 4
    """Position of the first key in the piece."""
    KEYS = 5
    """How many keys of the row are in the piece."""
    AT = 6
    """The first of them among the keys of the piece."""
    AGAIN = 7
    """1 if the row has attended to keys of an earlier piece."""
    MORE = 8
    """1 if keys of the row are in a later piece, too."""


def _gather_rows(cache: Tensor, table: Tensor, piece: Tensor, keys: int, most_keys: int, page_size: int) -> Tensor:
    """Returns the latent rows of a piece side by side, [keys, size].

    cache: [KV slots, 1, size]; table: [rows, pages] int32; piece: [N, len(Part)] int32. keys: in the piece; most_keys:
    of one row in it.
    """
    found = []
    for part in piece.tolist():
        positions = torch.arange(part[Part.BEGIN], part[Part.BEGIN] + part[Part.KEYS], device=cache.device)
        pages = table[part[Part.SLOT]].index_select(0, positions // page_size)
        found.append(cache.index_select(0, pages * page_size + positions % page_size).squeeze(1))
    return torch.cat(found)


def _attend_to_heads(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    turned: Tensor,
    piece: Tensor,
    most_new: int,
    scale: float,
    out: Tensor,
    sums: Tensor,
    lse: Tensor,
) -> None:
    """Attends with the new tokens of a piece's rows over the keys of the piece, each token over those up to its own.

    Merges the result with that of earlier pieces. Writes it to out [T, heads, value_dim], or to sums, of the same shape
    in float32, if more pieces of the row follow. The logarithms of the sums of exponents go to lse [T, heads] float32.
    Nothing is written for the tokens of other rows. If no row goes on in another piece, sums may be any float32.

    q: [T, heads, key_dim + rope_dim]; keys: [heads, L, key_dim]; values: [heads, L, value_dim]; turned: [L, rope_dim],
    the part of a key that all heads share, maybe a slice of rows; piece: [N, len(Part)] int32. most_new: new tokens of
    a row at most.
    """
    key_dim = keys.shape[2]
    for part in piece.tolist():
        tokens = slice(part[Part.TOKEN], part[Part.TOKEN] + part[Part.NEW])
        own = slice(part[Part.AT], part[Part.AT] + part[Part.KEYS])
        queries = q[tokens].transpose(0, 1).float()
        scores = torch.matmul(queries[..., :key_dim], keys[:, own].float().mT)
        scores = (scores + torch.matmul(queries[..., key_dim:], turned[own].float().T)) * scale
        behind = part[Part.BEGIN] + torch.arange(part[Part.KEYS], device=q.device)
        seen_by = part[Part.FIRST] + torch.arange(part[Part.NEW], device=q.device)
        scores = scores.masked_fill(behind > seen_by[:, None], float("-inf"))
        total = scores.logsumexp(dim=-1)
        # A token that sees no key of the piece has seen some of an earlier one.
        weights = torch.exp(scores - total.masked_fill(total == float("-inf"), 0.0)[..., None])
        result, total = torch.matmul(weights, values[:, own].float()).transpose(0, 1), total.T
        if part[Part.AGAIN]:
            both = torch.logaddexp(lse[tokens], total)
            before = sums[tokens] * torch.exp(lse[tokens] - both)[..., None]
            result, total = before + result * torch.exp(total - both)[..., None], both
        target = sums if part[Part.MORE] else out
        target[tokens], lse[tokens] = result.to(target.dtype), total


norm_and_turn = Op(
    "norm_and_turn", reference=_norm_and_turn, cuda="mysglang.srt.kernels.cuda.latent_rows:norm_and_turn"
)
absorb_queries = Op(
    "absorb_queries",
    reference=_absorb_queries,
    cuda="mysglang.srt.kernels.cuda.latent_rows:absorb_queries",
    # Composed of the products of single heads.
    invariant={"cuda": ()},
)
gather_rows = Op("gather_rows", reference=_gather_rows, cuda="mysglang.srt.kernels.cuda.expanded_attention:gather_rows")
attend_to_heads = Op(
    "attend_to_heads", reference=_attend_to_heads, cuda="mysglang.srt.kernels.cuda.expanded_attention:attend_to_heads"
)
