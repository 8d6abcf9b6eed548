"""Pooler: the hidden states of a prompt's tokens -> one vector. Knows how they lie in a step, and no model."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Pool = Callable[[Tensor, Tensor], Tensor]
"""(hidden [T, H], lens [R] int64) -> [R, H] float32; the tokens of the rows stand one row after another."""


def last_token(hidden: Tensor, lens: Tensor) -> Tensor:
    return hidden.index_select(0, lens.cumsum(0) - 1).float()


def first_token(hidden: Tensor, lens: Tensor) -> Tensor:
    return hidden.index_select(0, lens.cumsum(0) - lens).float()


def mean(hidden: Tensor, lens: Tensor) -> Tensor:
    # `unsafe`: the lengths are the scheduler's, and checking them would wait for the device.
    return torch.segment_reduce(hidden.float(), "mean", lengths=lens, axis=0, unsafe=True)


def largest(hidden: Tensor, lens: Tensor) -> Tensor:
    return torch.segment_reduce(hidden.float(), "max", lengths=lens, axis=0, unsafe=True)


def mean_sqrt_len(hidden: Tensor, lens: Tensor) -> Tensor:
    """Returns the sum divided by the square root of the length, as sentence-transformers' `mean_sqrt_len_tokens`."""
    total = torch.segment_reduce(hidden.float(), "sum", lengths=lens, axis=0, unsafe=True)
    return total / lens.sqrt().unsqueeze(1)


def weighted_mean(hidden: Tensor, lens: Tensor) -> Tensor:
    """Returns the mean with weights 1, 2, 3 and so on by position: Muennighoff, "SGPT" (2022), section 3.1.2."""
    starts = lens.cumsum(0) - lens
    # `output_size`: without it, repeating would wait for the device.
    begins = starts.repeat_interleave(lens, output_size=hidden.shape[0])
    weights = torch.arange(1, hidden.shape[0] + 1, device=hidden.device) - begins
    weighted = hidden.float() * weights.unsqueeze(1)
    total = torch.segment_reduce(weighted, "sum", lengths=lens, axis=0, unsafe=True)
    return total / (lens * (lens + 1) / 2).unsqueeze(1)


POOLS: dict[str, Pool] = {
    "last": last_token,
    "cls": first_token,
    "mean": mean,
    "max": largest,
    "mean_sqrt_len_tokens": mean_sqrt_len,
    "weightedmean": weighted_mean,
}


class Pooler:
    """Pools hidden states, applies the model's head, and normalises vectors to length 1 if configured."""

    def __init__(self, mode: str, *, normalize: bool, head: Callable[[Tensor], Tensor]) -> None:
        """`mode`: a name in `POOLS`; `head`: [N, H] -> [N, width], both float32."""
        self._pool = POOLS[mode]
        self._normalize = normalize
        self._head = head

    def rows(self, hidden: Tensor, lens: Tensor) -> Tensor:
        """Returns vectors [R, width] float32 from all tokens [T, H] of R rows, whose lengths are lens [R] int64."""
        return self._finish(self._pool(hidden, lens))

    def tokens(self, hidden: Tensor) -> Tensor:
        """Returns vectors from one token of each row, [R, H]."""
        return self._finish(hidden.float())

    def _finish(self, pooled: Tensor) -> Tensor:
        vectors = self._head(pooled)
        return F.normalize(vectors, dim=-1) if self._normalize else vectors
