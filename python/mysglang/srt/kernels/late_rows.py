"""Positions, KV slots and random numbers of tokens in a step, if only the device knows how long some rows are.

    slot     row_length   newest   recent          kept by slot, from the step before
    step     starts[r]    -1: only the device knows        given by the host
             runs[r]      what the host expects after the tokens that it knows, `known[r]` of them

Everything is computed on the device. The host reads nothing and knows only how long a row may be at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op

NO_DRAFT_HERE = -2
"""In the place of a draft. The token of a row that is not finite is -1, and must not be taken for an accepted draft."""
MARK = -2
"""An input id at whose place a draft may stand (`forward.worker_batch.DRAFTED`)."""


class StepTokens(NamedTuple):
    """The T tokens of R rows, as the host gives them. Rows follow one another."""

    rows: Tensor
    """[T] int64 row of each token."""
    places: Tensor
    """[T] int64 place of each token in its row, from 0 on."""
    slots: Tensor
    """[R] int64"""
    starts: Tensor
    """[R] int64 tokens of the row before the step; -1: what `row_length` says."""
    extend_lens: Tensor
    """[R] int32 tokens of the row in the step, 1 or more; those from this place on only fill the row up."""
    runs: Tensor
    """[R, M] int64 tokens that the host expects from position `known` on; negative where it expects none."""
    known: Tensor
    """[R] int64 tokens of the row that the host knows; -1: it expects nothing."""


class SlotTokens(NamedTuple):
    """Tensors that the device keeps for slots between steps. All int64."""

    newest: Tensor
    """[slots] the newest token."""
    row_length: Tensor
    """[slots] tokens whose keys count."""
    recent: Tensor
    """[slots, W] the tokens that the last step with drafts gave the row."""


class PlacedTokens(NamedTuple):
    """Ids, positions and KV slots of the tokens of a step, and drafts among them."""

    ids: Tensor
    """[T] int64, none negative."""
    positions: Tensor
    """[T] int64. Tokens that fill a row up have the position of its last one."""
    locs: tuple[Tensor, ...]
    """[T] int64 KV slots in each page space; 0, the null page, for tokens that fill a row up."""
    seq_lens: Tensor
    """[R] int32 tokens of each row with those of the step."""
    drafts: Tensor
    """[T] int64 the host's draft that stands here; NO_DRAFT_HERE: none."""


def _place_tokens(
    ids: Tensor,
    tokens: StepTokens,
    slots: SlotTokens,
    locs: Sequence[Tensor],
    tables: Sequence[Tensor],
    page_size: int,
) -> PlacedTokens:
    """Finds the position and KV slots of each token, and the draft of the host that is there.

    A draft stands at its place if the tokens that the host did not know came as it expected.

    ids: [T] int64; negative: the newest token of the row, and a draft may be where it is MARK. locs: [T] int64 for
    each page space, good for rows whose start the host knows. tables: the page table of each space, [slots, pages]
    int32.
    """
    row, place, starts = tokens.rows, tokens.places, tokens.starts
    late = starts < 0
    start = torch.where(late, slots.row_length[tokens.slots], starts)
    last = start + tokens.extend_lens - 1
    live = place < tokens.extend_lens[row]
    positions = torch.minimum(start[row] + place, last[row])
    found = []
    for given, table in zip(locs, tables, strict=True):
        pages = table[tokens.slots[row], positions // page_size].long()
        looked_up = pages * page_size + positions % page_size
        found.append(torch.where(live, torch.where(late[row], looked_up, given), 0))

    newest = slots.newest[tokens.slots]
    width, length = slots.recent.shape[1], tokens.runs.shape[1]
    unknown = start + 1 - tokens.known
    came = (tokens.known >= 0) & (unknown >= 0) & (unknown <= min(length, width + 1))
    expected = tokens.runs.gather(1, (unknown - 1).clamp(0, length - 1)[:, None])[:, 0]
    came &= (unknown == 0) | (expected == newest)
    for before in range(min(width, length)):
        right = slots.recent[tokens.slots, before] == tokens.runs[:, before]
        came &= right | (before >= unknown - 1)
    at = unknown[row] + place - 1
    wanted = (ids == MARK) & came[row] & live & (at >= 0) & (at < length)
    draft = tokens.runs[row, at.clamp(0, length - 1)]
    drafts = torch.where(wanted & (draft >= 0), draft, NO_DRAFT_HERE)
    resolved = torch.where(drafts >= 0, drafts, torch.where(ids < 0, newest[row], ids))
    return PlacedTokens(resolved, positions, tuple(found), (start + tokens.extend_lens).int(), drafts)


place_tokens = Op("place_tokens", reference=_place_tokens, cuda="mysglang.srt.kernels.cuda.late_rows:place_tokens")

GOLDEN, FIRST, SECOND = (number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants of splitmix64 as signed numbers: products wrap alike."""


def _uniforms_at(seeds: Tensor, lengths: Tensor) -> Tensor:
    """Returns [S] float64 in [0, 1): the numbers that `sampling.draws.uniforms` gives for these seeds and lengths, both
    [S] int64.
    """
    mixed = _mixed(_mixed(seeds) ^ lengths)
    return _shifted(mixed, 11).double() * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    x = x + GOLDEN
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shifts right, with zeros from the left."""
    return (x >> by) & ((1 << (64 - by)) - 1)


uniforms_at = Op("uniforms_at", reference=_uniforms_at, cuda="mysglang.srt.kernels.cuda.late_rows:uniforms_at")
