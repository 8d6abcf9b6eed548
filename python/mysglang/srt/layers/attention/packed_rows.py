"""Rows that are expanded to keys and values of heads together, in pieces of so many keys as have room.

    piece 0   | all keys of row 0 | all of row 1 | the first of row 2 |
    piece 1   | the rest of row 2 | all of row 3 |                          row 2 merges both results

A piece is four kernels in each layer: its latent rows are gathered, keys and values are made of them by two products,
and all of its rows attend at once. Lengths are those that the host knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Expand, ExpandedRows, ForwardBatch
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


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys of some rows, side by side."""

    parts: Tensor
    """[N, len(Part)] int32 on the device, a line for each row."""
    keys: int
    most_keys: int
    """Most keys of one row in this piece."""
    most_new: int
    """Most new tokens of one row."""


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
        found = pieces_of(host.slots[rows], firsts, host.extend_lens[rows], host.seq_lens[rows], self.room)
        bounds = np.cumsum([len(parts) for parts in found])
        uploaded = to_device(np.concatenate(found), self._page_table.device).tensor_split(bounds[:-1].tolist())
        pieces = tuple(
            Piece(
                on_device,
                int(parts[:, Part.KEYS].sum()),
                int(parts[:, Part.KEYS].max()),
                int(parts[:, Part.NEW].max()),
            )
            for parts, on_device in zip(found, uploaded, strict=True)
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
            where = (self.page_table, piece.parts, piece.keys, piece.most_keys, self.pool.page_size)
            rows = gather_rows(cache, *where)
            made = expand(rows)
            attend_to_heads(
                q, *made, rows[:, spec.value_dim :], piece.parts, piece.most_new, spec.scale, out, sums, lse
            )


def pieces_of(slots: Longs, firsts: Ints, extend_lens: Ints, seq_lens: Ints, room: int) -> list[Ints]:
    """Returns the lines of each piece, [N, len(Part)] int32, for rows of these lengths.

    firsts: index of each row's first new token among those of the step. room: keys of a piece.
    """
    pieces: list[Ints] = []
    lines: list[tuple[int, ...]] = []
    used = 0
    for slot, token, new, length in zip(slots, firsts, extend_lens, seq_lens, strict=True):
        begin = 0
        while begin < length:
            keys = min(int(length) - begin, room - used)
            ends = begin + keys == length
            lines.append((slot, token, new, length - new, begin, keys, used, begin > 0, not ends))
            begin, used = begin + keys, used + keys
            if used == room:
                pieces.append(np.array(lines, dtype=np.int32))
                lines, used = [], 0
    if lines:
        pieces.append(np.array(lines, dtype=np.int32))
    return pieces
