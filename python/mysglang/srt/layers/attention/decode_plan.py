"""DecodePlanner: divides the attention of a decode step among the kernel's blocks of threads. The result is the lists
that `mysgl_kernel.attention` reads.

    segment   keys that the same rows read: the shared pages of a group, or the other pages of one row
    line      a segment, for as many KV heads and queries as one block of threads computes at a time
    piece     the part of a line that lies in one block's share

    lines   |    row 0     |       row 1        | row 2 |   row 3    |     laid end to end, each as long as it costs
    shares  |   block 0   |   block 1   |   block 2   |   block 3    |
    pieces  |      0      |1|    2      | 3 |   4   |5|      6       |

Every block gets the same cost. If a row is one piece, its block writes the row's output. Otherwise each piece writes a
partial result, and the results are joined in the order of segments and pieces. All of this is numpy on the host.

A late plan (`fill_late`) is for rows of which the host only knows how long they are at most. It is made as if they were
as long as that; the kernel leaves out what lies after their ends. A row of such a plan may have several new tokens,
which read its keys together, as the rows of a group do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.attention import ITEM_FIELDS, NONE_FRESH, Field, TeamShape, latent_team_shapes, team_shapes
from mysglang.srt.layers.attention.graph import HostColumns

Longs: TypeAlias = npt.NDArray[np.int64]

BYTE_FLOPS = 40
"""Operations that a block computes in the time of reading one byte; measured (benchmark/kernels/attention.md)."""
LATENT_BYTE_FLOPS = 44
"""Operations over latent rows that a block computes in the time of reading one byte: 32 rows took about 1.45 us for 32
queries, and their reading takes 1.06 us on an H200 (benchmark/kernels/latent.md).
"""
LEAST_KEYS = 32
"""Smallest number of keys in a block's share. With fewer keys, joining the pieces costs more than the parallel reading
saves.
"""
CUT_KEYS = 16
"""Cuts are at multiples of so many keys, which a warp reads at once; a line's last piece has no fewer."""
LINE_OVERHEAD = 8
"""Cost of beginning and ending a line, in keys."""
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
    latent_dim: int | None = None
    """Numbers of a value in a latent row; None: values are stored beside keys."""

    @property
    def value_dim(self) -> int:
        """Numbers of a value, and of each head of a result."""
        return self.head_dim if self.latent_dim is None else self.latent_dim

    @property
    def teams(self) -> tuple[TeamShape, ...]:
        """Teams that the kernel has for such layers, ascending."""
        if self.latent_dim is None:
            return team_shapes(self.num_kv_heads, self.head_dim)
        return latent_team_shapes()

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def key_cost(self, team: TeamShape) -> int:
        """Returns the cost of one key for the heads of a block, in bytes read: the larger of reading it and computing
        with it.
        """
        stored = self.head_dim + self.value_dim if self.latent_dim is None else self.head_dim
        flops = BYTE_FLOPS if self.latent_dim is None else LATENT_BYTE_FLOPS
        queries = team.heads * team.shares * team.queries
        return max(team.heads * stored * 2, queries * (self.head_dim + self.value_dim) * 2 // flops)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of segments, those of a segment one after another."""

    items: Ints
    """[L, ITEM_FIELDS] each line as if it were one piece; the slot and what depends on lengths is filled in later."""
    rows: Longs
    """[L] batch row whose pages are read."""
    costs: Longs
    """[L] of one key."""
    firsts: Longs
    """[S] the first line of each segment."""
    shares: Longs
    """[S] partial results that a piece leaves for each query."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about a step's lines except slots and lengths. Segments are the groups, then the rows' own keys."""

    lines: Lines
    lengths: Longs
    """[lines of groups] keys of each."""
    num_groups: int
    own_begins: Longs
    """[R] the first of each row's own keys."""
    members: Longs
    """[M] batch rows, group after group."""
    sizes: Longs
    """[G] rows of each group."""
    order: Longs
    """[M] which sorts the members by row, the groups of a row in their order."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Lines cut at the borders of the blocks' shares."""

    lines: Longs
    """[P] the line of each piece."""
    begins: Longs
    lengths: Longs
    """[P] keys; the first is counted from the line's."""
    numbers: Longs
    """[P] within the line."""
    counts: Longs
    """[L] of each line."""
    indptr: Longs
    """[blocks + 1] of each block."""


NONE: Longs = np.zeros(0, dtype=np.int64)


class DecodePlanner:
    """Plans steps of `num_rows` rows for one kind of layer. `width`: new tokens of each row; late plans alone may have
    more than one.
    """

    def __init__(self, shape: DecodeShape, num_rows: int, width: int = 1) -> None:
        self.shape = shape
        self.num_rows = num_rows
        self.width = width
        self._teams = shape.teams
        self._tiles = np.array([team.queries for team in self._teams])
        self._rows = np.arange(num_rows)
        self._own = self._lines(self._rows * width, np.full(num_rows, width, dtype=np.int64), self._rows)
        self._key_cost = int(self._own.costs[0])
        self._alone = self._layout(None)
        self._last: tuple[SharedPrefixes, Layout] | None = None
        self._set_limits()

    def _set_limits(self) -> None:
        rows, group, blocks, biggest = self.num_rows, self.shape.group, self.shape.blocks, self._teams[-1]
        own = len(self._own.rows)
        shares_pages = rows > 1 and self.width == 1
        shared = biggest.columns * (LEVELS * rows * group // biggest.queries + 16) if shares_pages else 0
        self.max_members = max(LEVELS, self.width) * rows
        self.max_lines = own + shared
        self.max_items = self.max_lines + blocks
        group_parts = max(blocks * team.queries * team.shares // (group * team.columns) for team in self._teams)
        # A cut adds one piece to one row, for each of its tokens.
        own_parts = (rows + blocks) * int(self._own.shares[0]) * self.width
        self.max_parts = own_parts + (group_parts + 2 * LEVELS * rows if shares_pages else 0)

    def columns(self) -> HostColumns:
        """Returns zeroed int32 arrays, large enough for any step. `fill` writes them and the device reads them."""
        return {
            "indptr": np.zeros(self.shape.blocks + 1, dtype=np.int32),
            "joins": np.zeros((self.num_rows * self.width, 2), dtype=np.int32),
            "members": np.zeros((self.max_members, 2), dtype=np.int32),
            "items": np.zeros((self.max_items, ITEM_FIELDS), dtype=np.int32),
        }

    def fill(self, slots: Ints, seq_lens: Ints, shared: SharedPrefixes | None, columns: HostColumns) -> None:
        """Write the plan of a step: [R] rows of the page table, and tokens of each row with the new one."""
        layout = self._alone if shared is None else self._shared_layout(shared)
        if not self._write(layout, slots, seq_lens, columns):
            fits = self._write(self._alone, slots, seq_lens, columns)
            assert fits

    def fill_late(self, slots: Ints, most_lens: Ints, tokens: Longs, columns: HostColumns) -> None:
        """Write a late plan: [R] rows of the page table, and how many tokens each row has at most, with the new ones.

        tokens: [R, width] the step's token at each place of a row. A row with fewer tokens may have its last one at the
        places behind it.
        """
        assert self.shape.window is None, "where a window begins only the device knows"
        lines, width = self._own, self.width
        pieces = self._cut(most_lens[lines.rows].astype(np.int64), lines.costs)
        row = lines.rows[pieces.lines]
        most = np.maximum.reduceat(pieces.counts, lines.firsts)
        of_tokens = np.repeat(most * lines.shares, width)
        placed = np.where(of_tokens > 1, of_tokens, 0)
        firsts = np.cumsum(placed) - placed
        items = columns["items"][: len(row)]
        np.take(lines.items, pieces.lines, axis=0, out=items)
        items[:, Field.SLOT] = slots[row]
        items[:, Field.BEGIN] = pieces.begins
        items[:, Field.END] = pieces.begins + pieces.lengths
        # A lone token is no member of anything: the item says where its first partial result is.
        first = firsts[row] if width == 1 else 0
        part = pieces.numbers * lines.shares[row] + first
        items[:, Field.PART] = np.where(placed[row * width] > 0, part, -1)
        last = pieces.numbers + 1 == pieces.counts[pieces.lines]
        items[:, Field.EMPTY] = np.where(last, most[row] - pieces.counts[pieces.lines], 0)
        items[:, Field.FRESH] = row
        columns["indptr"][:] = pieces.indptr
        entries = np.stack((firsts, of_tokens), axis=1)
        columns["joins"][tokens.reshape(-1)] = entries
        if width > 1:
            columns["members"][: len(entries), 0] = tokens.reshape(-1)
            columns["members"][: len(entries), 1] = firsts

    def _shared_layout(self, shared: SharedPrefixes) -> Layout:
        """Returns the groups' lines before the rows' own; without them where they do not fit."""
        if self.shape.window is not None:
            return self._alone  # each row of a group would see another part of it
        if self._last is None or self._last[0] is not shared:
            layout = self._layout(shared)
            fits = len(layout.lines.rows) <= self.max_lines and len(layout.members) <= self.max_members
            self._last = shared, layout if fits else self._alone
        return self._last[1]

    def _layout(self, shared: SharedPrefixes | None) -> Layout:
        if shared is None:
            nothing = np.zeros(self.num_rows, dtype=np.int64)
            return Layout(self._own, NONE, 0, nothing, NONE, NONE, NONE)
        sizes, firsts = np.diff(shared.row_indptr).astype(np.int64), shared.row_indptr[:-1].astype(np.int64)
        groups = self._lines(firsts, sizes, shared.rows[firsts].astype(np.int64))
        segments = np.repeat(np.arange(len(sizes)), np.diff(groups.firsts, append=len(groups.rows)))
        groups.items[:, Field.BEGIN] = shared.starts[segments]
        return Layout(
            chain(groups, self._own),
            (shared.ends - shared.starts)[segments].astype(np.int64),
            len(sizes),
            shared.private_starts(self.num_rows).astype(np.int64),
            shared.rows.astype(np.int64),
            sizes,
            np.argsort(shared.rows, kind="stable"),
        )

    def _lines(self, sources: Longs, sizes: Longs, rows: Longs) -> Lines:
        """Returns the lines of segments with that many rows each. All lines of a segment have the smallest team that
        takes all its queries at once, or the largest team.
        """
        queries = sizes * self.shape.group
        shape = np.minimum(np.searchsorted(self._tiles, queries), len(self._teams) - 1)
        columns, shares = (
            np.array([getattr(team, name) for team in self._teams])[shape] for name in ("columns", "shares")
        )
        counts = columns * -(-queries // self._tiles[shape])
        firsts = np.cumsum(counts) - counts
        segment = np.repeat(np.arange(len(sizes)), counts)
        place = np.arange(len(segment)) - firsts[segment]
        tile, column = np.divmod(place, columns[segment])
        items = np.zeros((len(segment), ITEM_FIELDS), dtype=np.int32)
        items[:, Field.HEAD] = column * np.array([team.heads for team in self._teams])[shape[segment]]
        items[:, Field.TEAM] = np.array([team.team for team in self._teams])[shape[segment]]
        items[:, Field.SOURCE] = sources[segment]
        items[:, Field.FIRST_QUERY] = tile * self._tiles[shape[segment]]
        items[:, Field.QUERIES] = queries[segment]
        items[:, Field.ROWS] = sizes[segment]
        costs = np.array([self.shape.key_cost(team) for team in self._teams])[shape[segment]]
        return Lines(items, rows[segment], costs, firsts, shares)

    def _write(self, layout: Layout, slots: Ints, seq_lens: Ints, columns: HostColumns) -> bool:
        """Write the plan; False if there is no room for its partial results."""
        lines, num_groups, grouped = layout.lines, layout.num_groups, len(layout.lengths)
        begins = layout.own_begins
        if self.shape.window is not None:
            begins = np.maximum(seq_lens - self.shape.window, 0)
        rows = self._own.rows
        lines.items[grouped:, Field.BEGIN] = begins[rows]
        lines.items[:, Field.SLOT] = slots[lines.rows]
        pieces = self._cut(np.concatenate((layout.lengths, (seq_lens - begins)[rows])), lines.costs)
        # Lines of one segment may be cut into different numbers of pieces. Each query of it has room for the most, and
        # the last piece of a shorter line says how many stay empty (EMPTY).
        most = np.maximum.reduceat(pieces.counts, lines.firsts)
        own_parts, counts, firsts, before = place_parts(most * lines.shares, layout)
        if counts[counts > 1].sum() > self.max_parts:
            return False
        segment = np.searchsorted(lines.firsts, pieces.lines, side="right") - 1
        items = columns["items"][: len(segment)]
        np.take(lines.items, pieces.lines, axis=0, out=items)
        items[:, Field.BEGIN] += pieces.begins
        ends = items[:, Field.BEGIN] + pieces.lengths
        private = segment >= num_groups
        part = pieces.numbers * lines.shares[segment]
        first = own_parts[segment[private] - num_groups]
        part[private] = np.where(first < 0, -1, part[private] + first)
        last = pieces.numbers + 1 == pieces.counts[pieces.lines]
        items[:, Field.END] = ends
        items[:, Field.PART] = part
        items[:, Field.EMPTY] = np.where(last, most[segment] - pieces.counts[pieces.lines], 0)
        items[:, Field.FRESH] = np.where(private, seq_lens[lines.rows[pieces.lines]] - 1, NONE_FRESH)
        columns["indptr"][:] = pieces.indptr
        columns["joins"][:, 0], columns["joins"][:, 1] = firsts, counts
        columns["members"][: len(before), 0], columns["members"][: len(before), 1] = layout.members, before
        return True

    def _cut(self, lengths: Longs, costs: Longs) -> Pieces:
        """Cuts the lines into pieces of work for the blocks. lengths: keys of each line [L], at least one; costs: of
        one key.
        """
        # Blocks get even shares of the cost of all lines laid end to end; a border inside a line cuts it.
        line_costs = (lengths + LINE_OVERHEAD) * costs
        line_ends, key_ends = np.cumsum(line_costs), np.cumsum(lengths)
        key_starts = key_ends - lengths
        total = int(line_ends[-1])
        blocks = min(self.shape.blocks, max(1, total // (LEAST_KEYS * self._key_cost)))
        borders = np.arange(1, blocks) * total // blocks
        line = np.searchsorted(line_ends, borders, side="right")
        length = lengths[line]
        key = (borders - (line_ends - line_costs)[line]) // costs[line]
        # To the nearest whole step of a warp; a rest smaller than one stays with the piece before it.
        key = (key + CUT_KEYS // 2) // CUT_KEYS * CUT_KEYS
        key = np.where((key > 0) & (key + CUT_KEYS > length), length, key)
        border_keys = key_starts[line] + key
        # A piece begins where a line does, and at each cut within one.
        starts = np.sort(np.concatenate((key_starts, border_keys[(key > 0) & (key < length)])), kind="stable")
        lines = np.searchsorted(key_ends, starts, side="right")
        counts = np.bincount(lines)
        # Blocks for which nothing is left have no pieces: all their bounds are the end.
        indptr = np.full(self.shape.blocks + 1, len(starts))
        indptr[0] = 0
        indptr[1:blocks] = np.searchsorted(starts, border_keys)
        return Pieces(
            lines,
            starts - key_starts[lines],
            np.diff(starts, append=key_ends[-1]),
            np.arange(len(starts)) - (np.cumsum(counts) - counts)[lines],
            counts,
            indptr,
        )


def chain(*tables: Lines) -> Lines:
    """Returns the lines of one after those of another."""
    offsets = np.cumsum([0, *(len(table.rows) for table in tables[:-1])])
    return Lines(
        np.concatenate([table.items for table in tables]),
        np.concatenate([table.rows for table in tables]),
        np.concatenate([table.costs for table in tables]),
        np.concatenate([table.firsts + offset for table, offset in zip(tables, offsets, strict=True)]),
        np.concatenate([table.shares for table in tables]),
    )


def place_parts(parts: Longs, layout: Layout) -> tuple[Longs, Longs, Longs, Longs]:
    """Assigns places to the partial results. The results of one row are adjacent: first those of its groups in their
    order, then its own.

    parts: [S] that each segment leaves for each of its rows. Returns, for each row, the first of its own (-1 if it
    needs none), how many it has in all (1: none) and the first of all; and for each member the first of that group's.
    """
    own = parts[layout.num_groups :]
    if not layout.num_groups:
        placed = np.where(own > 1, own, 0)
        firsts = np.cumsum(placed) - placed
        return np.where(own > 1, firsts, -1), own, firsts, layout.members
    of_members = np.repeat(parts[: layout.num_groups], layout.sizes)
    of_groups = np.bincount(layout.members, weights=of_members, minlength=len(own)).astype(np.int64)
    counts = own + of_groups
    placed = np.where(counts > 1, counts, 0)
    firsts = np.cumsum(placed) - placed
    # A row's members are neighbours in this order, and `running` counts on over rows.
    ordered, rows = of_members[layout.order], layout.members[layout.order]
    running = np.cumsum(ordered) - ordered
    before = np.empty_like(ordered)
    before[layout.order] = firsts[rows] + running - (np.cumsum(of_groups) - of_groups)[rows]
    return np.where(counts > 1, firsts + of_groups, -1), counts, firsts, before
