"""Drawing and bit masks on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.kernels.sampling import Filters, allowed_ranks, invert, weights_of

FIRST_TAKEN = 256
"""Enough for nearly every row; where it is not, sixteen times as many are looked at."""


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    filters: Filters,
) -> Tensor:
    """Implements the op `draw_tokens`. `kernels/sampling.py` describes its arguments and result."""
    if not filters.given:
        return invert(weights_of(logits, temperature), uniforms)
    weights = weights_of(logits, temperature)
    total, vocab_size = weights.sum(dim=-1), weights.shape[1]
    taken = FIRST_TAKEN
    while True:
        taken = min(taken, vocab_size)
        ranked = weights.topk(taken, dim=-1).values
        allowed = allowed_ranks(ranked, total, filters)
        if taken == vocab_size or not bool(allowed[:, -1].any()):
            break
        taken *= 16
    # Allowed are those above the last allowed weight, and of just that weight as many of the lowest ids as are left.
    count = allowed.sum(dim=-1, keepdim=True).clamp(min=1)
    last = ranked.gather(1, count - 1)
    above = weights > last
    level = weights == last
    quota = count - above.sum(dim=-1, keepdim=True)
    weights = weights.masked_fill_(~(above | (level & (level.cumsum(dim=-1) <= quota))), 0.0)
    return invert(weights, uniforms)


def apply_token_bitmask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Implements the op `apply_token_bitmask`. `kernels/sampling.py` describes its arguments and result."""
    # One row after another: a row of logits stays in the cache while it is changed.
    for row, words in zip(rows.tolist(), bits.numpy(), strict=True):
        forbidden = np.unpackbits(~words.view(np.uint8), bitorder="little")[: logits.shape[1]]
        logits[row].masked_fill_(torch.from_numpy(forbidden.view(np.bool_)), float("-inf"))
