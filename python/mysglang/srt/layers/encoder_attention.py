"""Attention of encoders: every token of a prompt sees all of that prompt. No cache, no pages, no positions.

Prompts of one step are attended in groups of similar length, each padded to its longest: at most half of a group is
padding, and the rest of the model computes no padding at all.

    tokens of the step   a a a a a b b c c c c d d          lens 5 2 4 2
    groups               [b b] [d d]      [a a a a a]
                                          [c c c c ·]      · masked
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Indices = npt.NDArray[np.int64]
SHORTEST = 16
"""Prompts up to this length are one group: more groups would cost more than their padding."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of similar length that are computed together as [rows, length]. `padded`: some of them are shorter."""

    rows: int
    length: int
    padded: bool


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """How the T tokens of R prompts are grouped. Host only, but for the columns that are uploaded."""

    groups: tuple[Group, ...]
    tokens: Indices
    """[P] the token at each place of the groups, group by group, row by row; padding repeats a row's last token."""
    real: npt.NDArray[np.bool_]
    """[P] whether there is a token at that place."""
    places: Indices
    """[T] the place of each token."""

    @classmethod
    def of(cls, lens: Sequence[int]) -> PromptLayout:
        """Builds the layout. lens: the tokens of each prompt, at least 1. Prompts whose lengths lie between the same
        powers of two share a group.
        """
        starts = np.cumsum([0, *lens])
        kinds: dict[int, list[int]] = {}
        for row, length in enumerate(lens):
            kinds.setdefault((max(length, SHORTEST) - 1).bit_length(), []).append(row)
        groups, tokens, real = [], [], []
        for _, rows in sorted(kinds.items()):
            of_rows = np.asarray([lens[row] for row in rows])
            longest = int(of_rows.max())
            at = np.arange(longest)
            groups.append(Group(len(rows), longest, bool((of_rows < longest).any())))
            tokens.append((starts[rows][:, None] + np.minimum(at, of_rows[:, None] - 1)).reshape(-1))
            real.append((at < of_rows[:, None]).reshape(-1))
        all_tokens, all_real = np.concatenate(tokens).astype(np.int64), np.concatenate(real)
        places = np.empty(starts[-1], dtype=np.int64)
        places[all_tokens[all_real]] = np.flatnonzero(all_real)
        return cls(tuple(groups), all_tokens, all_real, places)


@dataclass(frozen=True, slots=True)
class PromptGroups:
    """The groups of a step, with the indices of their tokens on the device."""

    groups: tuple[Group, ...]
    tokens: Tensor
    real: Tensor
    places: Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: PromptGroups,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Computes scaled dot-product attention over whole prompts. q: [T, num_heads * head_dim]; k, v: [T, num_kv_heads *
    head_dim], with as many heads as q if that is None. Returns the shape of q.

    scale: factor of the scores, 1 / sqrt(head_dim) if None. window: keys that a query sees on each side, itself
    included in both; None: all.

    Vaswani et al., "Attention Is All You Need" (2017), 3.2.1.
    """
    outputs = []
    start = 0
    for group in groups.groups:
        end = start + group.rows * group.length
        tokens = groups.tokens[start:end]
        heads = num_heads, num_kv_heads or num_heads, num_kv_heads or num_heads
        of_q, of_k, of_v = (
            x.index_select(0, tokens).view(group.rows, group.length, count, -1).transpose(1, 2)
            for x, count in zip((q, k, v), heads, strict=True)
        )
        if heads[1] < num_heads:
            of_k, of_v = (x.repeat_interleave(num_heads // heads[1], dim=1) for x in (of_k, of_v))
        mask = groups.real[start:end].view(group.rows, 1, 1, group.length) if group.padded else None
        if window is not None and group.length > window:
            near = within(window, group.length, q.device)
            mask = near if mask is None else near & mask
        found = F.scaled_dot_product_attention(of_q, of_k, of_v, attn_mask=mask, scale=scale)
        outputs.append(found.transpose(1, 2).reshape(end - start, -1))
        start = end
    return torch.cat(outputs).index_select(0, groups.places)


def within(window: int, length: int, device: torch.device) -> Tensor:
    """Returns [length, length] bool: True if two tokens are less than `window` positions from each other."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions).abs() < window
