"""DecodePlanner: who reads which keys in a decode step, as the lists that `mysgl_kernel.attention` walks.

    segment   keys [begin, end) that the same rows read: a group's shared pages, or what a row has for itself
    line      a segment for as many KV heads and queries as one block of threads takes at a time
    piece     the part of a line that lies in one block's share

    lines   |    row 0     |       row 1        | row 2 |   row 3    |     laid end to end, each as long as it costs
    shares  |   block 0   |   block 1   |   block 2   |   block 3    |
    pieces  |      0      |1|    2      | 3 |   4   |5|      6       |

Every block gets the same cost. A row that is one piece writes its output; of others each piece leaves a partial result,
which are joined in the order of segments and pieces. Array arithmetic on the host; it knows no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.attention import ITEM_FIELDS, TeamShape, team_shapes
from mysglang.srt.layers.attention.graph import HostColumns

Longs: TypeAlias = npt.NDArray[np.int64]

BYTE_FLOPS = 60
"""What a block computes in the time in which it reads a byte."""
LEAST_KEYS = 32
"""Of a block's share: below, joining more pieces costs more than reading in more places saves."""
SNAP = 16
"""A cut this near to a line's end, in keys, moves there."""
LINE_OVERHEAD = 8
"""What starting and ending a line costs, in keys."""
LEVELS = 4
"""Groups that a row is in, on average, for which there is room; with more, nothing is shared."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """A kind of layer, and how many blocks of threads the device runs at once."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    blocks: int

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.num_heads // self.num_kv_heads

    def key_cost(self, team: TeamShape) -> int:
        """Of reading one key for the heads of a block, or of computing with it, in bytes read."""
        read = team.heads * self.head_dim * 2 * 2
        computed = team.heads * team.shares * team.queries * self.head_dim * 2 * 2 // BYTE_FLOPS
        return max(read, computed)


@dataclass(frozen=True, slots=True)
class Segments:
    """Groups first, then each row's own keys. int64, one entry for each segment, and of the groups' members."""

    slots: Longs
    """Row of the page table."""
    begins: Longs
    ends: Longs
    """Positions of keys."""
    shapes: Longs
    """Index of the team shape."""
    queries: Longs
    """Of one KV head."""
    sources: Longs
    """The batch row; of a group, its first member."""
    rows: Longs
    """How many; a group has at least two."""
    members: Longs
    """Batch rows, group after group."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines cut at the borders of the blocks' shares."""

    lines: Longs
    """[P] the line of each piece."""
    begins: Longs
    ends: Longs
    """[P] keys, counted from the line's first."""
    numbers: Longs
    """[P] within the line."""
    counts: Longs
    """[L] of each line."""
    indptr: Longs
    """[blocks + 1] of each block."""


class DecodePlanner:
    """Plans steps of up to `max_rows` rows for one kind of layer."""

    def __init__(self, shape: DecodeShape, max_rows: int) -> None:
        self.shape = shape
        self.max_rows = max_rows
        self._teams = teams = team_shapes(shape.num_kv_heads, shape.head_dim)
        self._team, self._tile, self._heads, self._shares, self._columns = (
            np.array([getattr(team, name) for team in teams])
            for name in ("team", "queries", "heads", "shares", "columns")
        )
        self._cost = np.array([shape.key_cost(team) for team in teams])
        self._own = int(self._fitting(np.array([shape.group]))[0])
        self._set_limits(teams[self._own], teams)

    def _set_limits(self, own: TeamShape, teams: Sequence[TeamShape]) -> None:
        rows, group, blocks, biggest = self.max_rows, self.shape.group, self.shape.blocks, teams[-1]
        own_lines = rows * own.columns * -(-group // own.queries)
        group_lines = biggest.columns * (LEVELS * rows * group // biggest.queries + 16) if rows > 1 else 0
        self.max_members = LEVELS * rows
        self.max_items = own_lines + group_lines + blocks
        group_parts = max(blocks * team.queries * team.shares // (group * team.columns) for team in teams)
        self.max_parts = (rows + blocks) * own.shares + (group_parts + 2 * LEVELS * rows if rows > 1 else 0)

    def columns(self) -> HostColumns:
        """Arrays for the largest step, empty: what `fill` writes and the device reads."""
        return {
            "indptr": np.zeros(self.shape.blocks + 1, dtype=np.int32),
            "joins": np.zeros((self.max_rows, 2), dtype=np.int32),
            "members": np.zeros((self.max_members, 2), dtype=np.int32),
            "items": np.zeros((self.max_items, ITEM_FIELDS), dtype=np.int32),
        }

    def fill(self, slots: Ints, seq_lens: Ints, shared: SharedPrefixes | None, columns: HostColumns) -> None:
        """Write the plan of one step: [R] rows of the page table and tokens of each row, the new one included."""
        if self.shape.window is not None:
            shared = None  # each row of a group would see another part of it
        if shared is None or not self._try_fill(self._segments(slots, seq_lens, shared), len(slots), columns):
            fits = self._try_fill(self._segments(slots, seq_lens, None), len(slots), columns)
            assert fits

    def _segments(self, slots: Ints, seq_lens: Ints, shared: SharedPrefixes | None) -> Segments:
        num_rows, group = len(slots), self.shape.group
        own_begins = np.zeros(num_rows, dtype=np.int64)
        if self.shape.window is not None:
            np.maximum(seq_lens - self.shape.window, 0, out=own_begins)
        shapes, queries = np.full(num_rows, self._own), np.full(num_rows, group)
        sources, rows = np.arange(num_rows), np.ones(num_rows, dtype=np.int64)
        own_slots, own_ends = slots.astype(np.int64), seq_lens.astype(np.int64)
        if shared is None:
            none = np.zeros(0, dtype=np.int64)
            return Segments(own_slots, own_begins, own_ends, shapes, queries, sources, rows, none)
        members, sizes = shared.rows.astype(np.int64), np.diff(shared.row_indptr).astype(np.int64)
        firsts = shared.row_indptr[:-1].astype(np.int64)
        np.maximum.at(own_begins, members, np.repeat(shared.ends, sizes))
        return Segments(
            np.concatenate((own_slots[members[firsts]], own_slots)),
            np.concatenate((shared.starts, own_begins)),
            np.concatenate((shared.ends, own_ends)),
            np.concatenate((self._fitting(sizes * group), shapes)),
            np.concatenate((sizes * group, queries)),
            np.concatenate((firsts, sources)),
            np.concatenate((sizes, rows)),
            members,
        )

    def _fitting(self, queries: Longs) -> Longs:
        """The smallest team that takes so many queries at once, or the largest."""
        found: Longs = np.minimum(np.searchsorted(self._tile, queries), len(self._teams) - 1)
        return found

    def _try_fill(self, segments: Segments, num_rows: int, columns: HostColumns) -> bool:
        """Write the plan; False if the arrays are too small for it."""
        tiles = -(-segments.queries // self._tile[segments.shapes])
        lines = self._columns[segments.shapes] * tiles
        if lines.sum() + self.shape.blocks > self.max_items or len(segments.members) > self.max_members:
            return False
        first_lines = np.cumsum(lines) - lines
        line_segment = np.repeat(np.arange(len(lines)), lines)
        pieces = self._cut((segments.ends - segments.begins)[line_segment], self._cost[segments.shapes[line_segment]])
        most = np.maximum.reduceat(pieces.counts, first_lines)
        parts = most * self._shares[segments.shapes]
        own_parts, counts, firsts, before = place_parts(parts, segments, num_rows)
        if counts.sum() > self.max_parts:
            return False
        num_groups, piece_segment = len(segments.slots) - num_rows, line_segment[pieces.lines]
        shape = segments.shapes[piece_segment]
        part = pieces.numbers * self._shares[shape]
        own = piece_segment >= num_groups
        row_part = own_parts[piece_segment[own] - num_groups]
        part[own] = np.where(row_part < 0, -1, part[own] + row_part)
        place = pieces.lines - first_lines[piece_segment]
        column = place % self._columns[shape]
        last = pieces.numbers + 1 == pieces.counts[pieces.lines]
        items = columns["items"][: len(part)]
        for i, values in enumerate(
            (
                segments.slots[piece_segment],
                segments.begins[piece_segment] + pieces.begins,
                segments.begins[piece_segment] + pieces.ends,
                column * self._heads[shape],
                self._team[shape],
                segments.sources[piece_segment],
                place // self._columns[shape] * self._tile[shape],
                segments.queries[piece_segment],
                segments.rows[piece_segment],
                part,
                np.where(last, most[piece_segment] - pieces.counts[pieces.lines], 0),
                last & own,
            )
        ):
            items[:, i] = values
        columns["indptr"][:] = pieces.indptr
        columns["joins"][:num_rows, 0] = firsts
        columns["joins"][:num_rows, 1] = counts
        columns["joins"][num_rows:] = 0
        columns["members"][: len(segments.members), 0] = segments.members
        columns["members"][: len(segments.members), 1] = before
        return True

    def _cut(self, lengths: Longs, costs: Longs) -> Pieces:
        """[L] keys of each line and the cost of one."""
        line_ends = np.cumsum((lengths + LINE_OVERHEAD) * costs)
        line_starts = line_ends - (lengths + LINE_OVERHEAD) * costs
        key_ends = np.cumsum(lengths)
        key_starts = key_ends - lengths
        total = int(line_ends[-1])
        blocks = min(self.shape.blocks, max(1, total // int(LEAST_KEYS * self._cost[self._own])))
        borders = np.arange(1, blocks) * total // blocks
        line = np.searchsorted(line_ends, borders, side="right")
        key = np.minimum((borders - line_starts[line]) // costs[line], lengths[line])
        left = lengths[line] - key
        key = np.where(np.minimum(key, left) >= SNAP, key, np.where(key < left, 0, lengths[line]))
        border_keys = key_starts[line] + key
        inside = (key > 0) & (key < lengths[line])
        starts = np.sort(np.concatenate((key_starts, border_keys[inside])))
        ends = np.append(starts[1:], key_ends[-1])
        lines = np.searchsorted(key_ends, starts, side="right")
        first = np.searchsorted(starts, key_starts)
        indptr = np.full(self.shape.blocks + 1, len(starts))
        indptr[0] = 0
        indptr[1:blocks] = np.searchsorted(starts, border_keys)
        return Pieces(
            lines,
            starts - key_starts[lines],
            ends - key_starts[lines],
            np.arange(len(starts)) - first[lines],
            np.diff(np.append(first, len(starts))),
            indptr,
        )


def place_parts(parts: Longs, segments: Segments, num_rows: int) -> tuple[Longs, Longs, Longs, Longs]:
    """Where partial results lie, those of a row one after another: of its groups in their order, then its own.

    parts: [S] that each segment leaves for each of its rows. Returns, for each row, the first of its own (-1 if it
    needs none), how many it has in all (1: none) and the first of all; and for each member the first of that group's.
    """
    own = parts[len(parts) - num_rows :]
    if not len(segments.members):
        counts = own
        firsts = np.cumsum(np.where(own > 1, own, 0)) - np.where(own > 1, own, 0)
        return np.where(own > 1, firsts, -1), counts, firsts, segments.members
    num_groups = len(parts) - num_rows
    member_parts = np.repeat(parts[:num_groups], segments.rows[:num_groups])
    order = np.argsort(segments.members, kind="stable")
    of_groups = np.bincount(segments.members, weights=member_parts, minlength=num_rows).astype(np.int64)
    counts = own + of_groups
    placed = np.where(counts > 1, counts, 0)
    firsts = np.cumsum(placed) - placed
    ordered = member_parts[order]
    running = np.cumsum(ordered) - ordered
    # A row's members are neighbours in this order, and `running` counts on over rows.
    rows = segments.members[order]
    before = np.empty_like(ordered)
    before[order] = firsts[rows] + running - (np.cumsum(of_groups) - of_groups)[rows]
    return np.where(counts > 1, firsts + of_groups, -1), counts, firsts, before
