"""Rows that are expanded to keys and values of heads together, in pieces of so many keys as have room.

    piece 0   | all keys of row 0 | all of row 1 | the first of row 2 |
    piece 1   | the rest of row 2 | all of row 3 |                          row 2 merges both results

A piece is four kernels in each layer: its latent rows are gathered, keys and values are made of them by two products,
and all of its rows attend at once. Lengths are those that the host knows.

Rows that share a cached beginning may attend to one copy of its keys, in pieces before those with their own keys. Then
these keys are made once, and results are merged once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Expand, ExpandedRows, ForwardBatch
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints, Longs
from mysglang.srt.kernels.latent import Part, attend_to_heads, gather_rows
from mysglang.srt.layers.attention.prefill_runs import starts_of
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.platforms.upload import to_device

PACKED_BYTES = 256 << 20
"""Keys and values of a piece take at most so many bytes, whatever the number of heads is."""
HEAD_NUMBERS = 512
"""A key and a value that are made for a head have at most so many numbers: 256 in DeepSeek-V3, 448 in GLM-4.7-Flash."""
LEAST_KEYS = 1024
LONG = 32
"""New tokens from which a row with a cached prefix is expanded: a product of matrices is several times as fast as
attention over latent rows.
"""
FRESH = 16


MERGED_KEYS = 1
"""Merging the result of a new token takes about as long as making keys and values of so many tokens, for all heads:
both move some numbers for each head (benchmark/kernels/latent.md).
"""
PIECE_KEYS = 2048
"""The kernels of one more piece take about as long as making so many keys."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys of some rows, side by side."""

    gathered: Tensor
    """[M, len(Part)] int32 on the device, a line for each row whose keys are gathered."""
    parts: Tensor
    """[N, len(Part)] int32 on the device, a line for each row that attends: the same lines, unless rows share keys."""
    keys: int
    most_keys: int
    """Most keys of one row in this piece."""
    most_new: int
    """Most new tokens of one row."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a step that are expanded, [N] each."""

    slots: Longs
    firsts: Ints
    """Index of each row's first new token among those of the step."""
    new: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys that the same rows attend to."""

    begin: int
    end: int
    rows: list[int]
    """Their places in Columns."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A piece on the host: the lines of `Piece`."""

    gathered: Ints
    parts: Ints


class PackedRows:
    """Expands many rows at once, with kernels that read the page table (a `Way`)."""

    def __init__(self, pool: KvPool, page_table: Tensor, num_heads: int) -> None:
        """num_heads: of a layer, on this rank."""
        self._pool = pool
        self._page_table = page_table
        self.room = max(LEAST_KEYS, PACKED_BYTES // (num_heads * HEAD_NUMBERS * pool.dtype.itemsize))
        """Keys of a piece."""
        self.long, self.fresh = LONG, FRESH

    def rows(self, batch: ForwardBatch, rows: Longs) -> ExpandedRows:
        host = batch.host
        firsts = starts_of(host.extend_lens)[rows]
        columns = Columns(host.slots[rows], firsts, host.extend_lens[rows], host.seq_lens[rows])
        found = pieces_of(columns, layers_of(columns, host.prompt_prefixes, rows), self.room)
        lines = [each for piece in found for each in (piece.gathered, piece.parts)]
        bounds = np.cumsum([len(each) for each in lines])
        uploaded = to_device(np.concatenate(lines), self._page_table.device).tensor_split(bounds[:-1].tolist())
        pieces = tuple(
            Piece(
                gathered,
                parts,
                int(piece.gathered[:, Part.KEYS].sum()),
                int(piece.gathered[:, Part.KEYS].max()),
                int(piece.parts[:, Part.NEW].max()),
            )
            for piece, gathered, parts in zip(found, uploaded[::2], uploaded[1::2], strict=True)
        )
        return PackedExpandedRows(pieces, self._pool, self._page_table)


@dataclass(frozen=True, slots=True)
class PackedExpandedRows:
    """Rows that are expanded together (`ExpandedRows`)."""

    pieces: tuple[Piece, ...]
    pool: KvPool
    page_table: Tensor

    def attend(self, q: Tensor, expand: Expand, spec: AttentionSpec, out: Tensor) -> None:
        cache, _ = self.pool.slots(spec.layer_id)
        lse = torch.empty(out.shape[:2], dtype=torch.float32, device=out.device)
        # Results of rows that are cut are kept in float32, since they are merged again and again.
        sums = torch.empty(out.shape, dtype=torch.float32, device=out.device) if len(self.pieces) > 1 else lse
        for piece in self.pieces:
            where = (self.page_table, piece.gathered, piece.keys, piece.most_keys, self.pool.page_size)
            rows = gather_rows(cache, *where)
            made = expand(rows)
            attend_to_heads(
                q, *made, rows[:, spec.value_dim :], piece.parts, piece.most_new, spec.scale, out, sums, lse
            )


def layers_of(columns: Columns, shared: SharedPrefixes | None, rows: Longs) -> list[list[Segment]]:
    """Returns the segments of all keys: in each layer but the last one those that several rows attend to, and last each
    row's own. A row has at most one segment in a layer, and attends to those of the layers in their order.

    rows: the rows of the batch, of which `shared` speaks, that the columns have.
    """
    begins = [0] * len(rows)
    layers: list[list[Segment]] = []
    if shared is not None:
        places = {row: place for place, row in enumerate(rows.tolist())}
        cached = columns.lengths - columns.new
        depths = [0] * len(rows)
        for group in range(shared.num_groups):
            members = [places[row] for row in shared.rows_of(group).tolist() if row in places]
            if len(members) < 2:
                continue
            # Groups above have all of these rows, so their keys begin at one place. New tokens are not shared, because
            # each row attends to its own up to the query.
            begin, end = begins[members[0]], min(int(shared.ends[group]), int(cached[members].min()))
            saved = (len(members) - 1) * (end - begin)
            if saved <= MERGED_KEYS * int(columns.new[members].sum()) + PIECE_KEYS:
                continue
            depth = depths[members[0]]
            if depth == len(layers):
                layers.append([])
            layers[depth].append(Segment(begin, end, members))
            for member in members:
                begins[member], depths[member] = end, depth + 1
    own = [
        Segment(begin, end, [row])
        for row, (begin, end) in enumerate(zip(begins, columns.lengths.tolist(), strict=True))
    ]
    return [*layers, own]


def pieces_of(columns: Columns, layers: list[list[Segment]], room: int) -> list[Lines]:
    """Returns the lines of each piece of at most `room` keys. No piece has segments of two layers, since all parts of a
    piece are attended to at once.
    """
    slots, firsts, new, lengths = (
        each.tolist() for each in (columns.slots, columns.firsts, columns.new, columns.lengths)
    )
    pieces: list[Lines] = []
    gathered: list[tuple[int, ...]] = []
    parts: list[tuple[int, ...]] = []
    used = 0

    def close() -> None:
        nonlocal gathered, parts, used
        if used:
            pieces.append(Lines(np.array(gathered, dtype=np.int32), np.array(parts, dtype=np.int32)))
            gathered, parts, used = [], [], 0

    for layer in layers:
        for segment in layer:
            begin = segment.begin
            while begin < segment.end:
                keys = min(segment.end - begin, room - used)
                lines = []
                for row in segment.rows:
                    cached, more = lengths[row] - new[row], begin + keys < lengths[row]
                    lines.append((slots[row], firsts[row], new[row], cached, begin, keys, used, begin > 0, more))
                gathered.append(lines[0])
                parts += lines
                begin, used = begin + keys, used + keys
                if used == room:
                    close()
        close()
    return pieces
