"""Attention as ops: over paged keys by a plan, and over keys that are side by side.

**By a plan** (decode steps): which block of threads reads which keys for which queries. The plan, int32, is made on the
host (layers/attention/decode_plan.py) and read by the kernel:

    indptr   [blocks + 1]         the items of each block
    items    [P, ITEM_FIELDS]     ranges of keys, with the queries that see them: see `Field`
    members  [M, 2]               batch row and first partial result, of each row of the groups that share pages
    joins    [R, 2]               first partial result of each row and how many; 1: the row is one item, written at once

Items of a group are read for all of its rows together. The maker and the reader of a plan must agree on how many heads
and queries an item is for: `team_shapes`.

A *late plan* is made for rows of which the device alone knows the lengths. It says how long they are at most, and rows
may have several new tokens: then the tokens of a row are a group, and each sees the row's keys up to its own.

**Side by side** (`dense_attention`): one part of a softmax over more keys, with what it takes to merge the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op, head_view

ITEM_FIELDS = 12
WARP_QUERIES = 16
"""Queries of each warp of a team; a warp by itself has half as many."""
WARP_KEYS = 16
"""Keys that a warp reads at once; the teams that share an item's keys divide them at multiples of these."""


class Field(IntEnum):
    """Columns of a work item of the attention kernel."""

    SLOT = 0
    """Row of the page table."""
    BEGIN = 1
    END = 2
    """Positions of keys."""
    HEAD = 3
    """First KV head."""
    TEAM = 4
    """Which of the team shapes: `TeamShape.team`."""
    SOURCE = 5
    """The batch row; of a group, its first member."""
    FIRST_QUERY = 6
    """Query i of a group is query head i % heads of its member i // heads, for each KV head."""
    QUERIES = 7
    """Queries of the whole group for one KV head."""
    ROWS = 8
    """1, or those of the group."""
    PART = 9
    """The partial result; of a group, how far behind each member's first. -1: there is none, it is the output."""
    EMPTY = 10
    """Number of partial results of the segment after this one that no other item writes."""
    FRESH = 11
    """Position of the first key that this step writes; NONE_FRESH of a group. In a late plan the batch row."""


NONE_FRESH = 2**31 - 1
MOST_FRESH = WARP_KEYS
"""New tokens of a row in a late plan at most: the kernel looks for their keys among the last so many."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The plan of a step for one kind of layer, and room for its partial results."""

    indptr: Tensor
    items: Tensor
    members: Tensor
    joins: Tensor
    partial: Tensor
    """[parts, num_heads, value_dim] float32."""
    partial_lse: Tensor
    """[parts, num_heads] float32, in base 2."""


@dataclass(frozen=True, slots=True)
class TeamShape:
    """A block of threads with teams of one size."""

    team: int
    """Warps of a team; 0: one warp by itself. Over latent rows: tiles of WARP_QUERIES queries."""
    queries: int
    """Queries of one team, all for one KV head."""
    heads: int
    """KV heads of the block's teams."""
    shares: int
    """Teams of one KV head; each takes an even share of the keys and leaves a partial result of its own."""
    columns: int
    """Blocks for all KV heads."""


@cache
def team_shapes(num_kv_heads: int, head_dim: int) -> tuple[TeamShape, ...]:
    """Returns every size of team, ascending."""
    warps = 8 if head_dim <= 128 else 4
    return tuple(_team_shape(num_kv_heads, warps, team) for team in (0, 1, 2, 4, 8) if team <= warps)


def _team_shape(num_kv_heads: int, warps: int, team: int) -> TeamShape:
    teams = warps // max(team, 1)
    # The largest power of two that divides the model's heads; further teams share the keys.
    heads = min(teams, num_kv_heads & -num_kv_heads)
    queries = team * WARP_QUERIES or WARP_QUERIES // 2
    return TeamShape(team, queries, heads, teams // heads, num_kv_heads // heads)


@cache
def latent_team_shapes() -> tuple[TeamShape, ...]:
    """Returns the tiles of attention over latent rows, ascending. All warps of a block compute one together."""
    return tuple(TeamShape(team, team * WARP_QUERIES, heads=1, shares=1, columns=1) for team in (1, 2))


def _planned_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    plan: DecodePlan,
    page_size: int,
    scale: float,
    logit_cap: float,
    early: bool,
    lengths: Tensor | None = None,
    extends: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attends with one query token in each row. Returns [R, num_heads * head_dim], in the dtype of q.

    q: [R, num_heads * head_dim], rows at any distance. keys, values: [KV slots, num_kv_heads, head_dim]. table:
    [num_slots + 1, max_pages] int32. Scores are scaled, then capped softly by logit_cap unless that is 0. early:
    this step writes no keys but those of the new tokens, so a kernel may read the others before the launch ahead is
    done.

    lengths, extends: [B] int32 of a late plan, tokens of each batch row with the new ones, at least 1, and how many are
    new, at most MOST_FRESH. The rows of q are then the step's tokens, which `members` and `joins` speak of. None: the
    host knew all lengths, and each row has one new token.

    sinks: [num_heads] float32, for each head the score of one more key that all rows see and whose value is zero.
    """
    late = None if lengths is None or extends is None else (lengths, extends)
    shapes = team_shapes(*keys.shape[1:])
    return _attend_by_plan(q, keys, values, table, plan, shapes, page_size, scale, logit_cap, late, sinks)


def _planned_latent_decode(
    q: Tensor,
    rows: Tensor,
    table: Tensor,
    plan: DecodePlan,
    page_size: int,
    scale: float,
    early: bool,
) -> Tensor:
    """Attends over latent rows [KV slots, 1, head_dim], whose first value_dim numbers are their value. Returns [R,
    num_heads * value_dim].

    Everything else is as in `planned_decode`; a plan has `latent_team_shapes`.
    """
    values = rows[..., : plan.partial.shape[2]]
    return _attend_by_plan(q, rows, values, table, plan, latent_team_shapes(), page_size, scale, 0.0, None, None)


def _attend_by_plan(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    plan: DecodePlan,
    teams: tuple[TeamShape, ...],
    page_size: int,
    scale: float,
    logit_cap: float,
    late: tuple[Tensor, Tensor] | None,
    sinks: Tensor | None,
) -> Tensor:
    """Both references. teams: those that the plan was made for. late: lengths, and how many tokens are new."""
    items, members, partial, partial_lse = plan.items, plan.members, plan.partial, plan.partial_lse
    _, kv_heads, dim = keys.shape
    queries = head_view(q, dim)
    group = queries.shape[1] // kv_heads
    out = torch.empty(*queries.shape[:2], values.shape[2], dtype=q.dtype, device=q.device)
    shapes = {shape.team: shape for shape in teams}
    for item in items[: int(plan.indptr[-1])].tolist():
        shape = shapes[item[Field.TEAM]]
        begin, end, fresh = item[Field.BEGIN], item[Field.END], NONE_FRESH
        if late is not None:
            length, extend = (int(column[item[Field.FRESH]]) for column in late)
            fresh = length - extend
            end = max(min(end, length), begin)
        last = min(item[Field.FIRST_QUERY] + shape.queries, item[Field.QUERIES])
        query = torch.arange(item[Field.FIRST_QUERY], last, device=q.device)
        member = query // group
        row, part = torch.full_like(query, item[Field.SOURCE]), torch.full_like(query, item[Field.PART])
        if item[Field.ROWS] > 1:
            row, first = members[item[Field.SOURCE] + member].long().unbind(1)
            part = part + first
        # [queries, 1], and [queries, KV heads]: query heads, of which each query has one for each KV head.
        rows = row[:, None]
        kv_head = torch.arange(item[Field.HEAD], item[Field.HEAD] + shape.heads, device=q.device)
        heads = kv_head * group + (query % group)[:, None]
        # The teams of a KV head share the item's keys in whole steps of WARP_KEYS, as the kernel cuts them.
        steps = -(-(end - begin) // WARP_KEYS)
        for share in range(shape.shares):
            first_key, end_key = (
                min(begin + steps * number // shape.shares * WARP_KEYS, end) for number in (share, share + 1)
            )
            seen = (fresh + 1 + member).clamp(max=end_key).clamp(min=first_key)
            at = torch.arange(first_key, int(seen.max()), device=q.device)
            locations = table[item[Field.SLOT], at // page_size].long() * page_size + at % page_size
            k, v = (side[locations[:, None], kv_head].float() for side in (keys, values))
            scores = torch.einsum("qhd,khd->qhk", queries[rows, heads].float(), k) * scale
            if logit_cap:
                scores = logit_cap * torch.tanh(scores / logit_cap)
            scores = scores.masked_fill(at >= seen[:, None, None], float("-inf"))
            # A query that sees none of these keys has no weights. The logarithm of its sum is -inf.
            weights = scores.softmax(dim=-1).where((seen > first_key)[:, None, None], 0.0)
            attended, lse = torch.einsum("qhk,khd->qhd", weights, v), scores.logsumexp(dim=-1)
            if item[Field.PART] < 0:
                if sinks is not None:
                    attended *= torch.sigmoid(lse - sinks[heads])[..., None]
                out[rows, heads] = attended.to(q.dtype)
                continue
            parts = part[:, None] + share
            partial[parts, heads] = attended
            partial_lse[parts, heads] = lse * LOG2E
            for behind in range(1, item[Field.EMPTY] + 1):
                partial_lse[parts + behind * shape.shares, heads] = float("-inf")
    _join(partial, partial_lse, plan.joins[: len(q)], sinks, out)
    return out.view(len(q), -1)


def _join(partial: Tensor, partial_lse: Tensor, joins: Tensor, sinks: Tensor | None, out: Tensor) -> None:
    """Writes the rows whose results are in parts."""
    for row, (first, count) in enumerate(joins.tolist()):
        if count > 1:
            parts = slice(first, first + count)
            lses = partial_lse[parts] / LOG2E
            weights = torch.softmax(lses, dim=0)
            if sinks is not None:
                weights = weights * torch.sigmoid(lses.logsumexp(dim=0) - sinks)
            # Partial results that were not written have weight 0, whatever they contain.
            joined = torch.where(weights[..., None] > 0, partial[parts] * weights[..., None], 0.0)
            out[row] = joined.sum(dim=0).to(out.dtype)


LOG2E = 1.4426950408889634

planned_decode = Op("planned_decode", reference=_planned_decode, cuda="mysgl_kernel.attention:planned_decode")
planned_latent_decode = Op(
    "planned_latent_decode",
    reference=_planned_latent_decode,
    cuda="mysgl_kernel.latent_attention:planned_latent_decode",
)


def _dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Returns the attention output of each query over these keys, [heads, n, value_dim] float32, and the logarithm of
    the sum of the exponents of its scores, [heads, n] float32. With both, partial results can be merged.

    q: [heads, n, dim]; k: [heads, L, dim]; v: [heads, L, value_dim], of one dtype. causal: L equals n, and query i sees
    keys 0 ... i; else all queries see all keys.
    """
    scores = torch.matmul(q.float(), k.float().transpose(1, 2)) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    lse = scores.logsumexp(dim=-1)
    return torch.matmul(torch.exp(scores - lse[..., None]), v.float()), lse


dense_attention = Op(
    "dense_attention", reference=_dense_attention, cpu="mysglang.srt.kernels.cpu.attention:dense_attention"
)
