"""LateRows: where the tokens of a step stand if only the device knows how long some of its rows are.

    host      at most so long  ->  pages, table width, how attention is cut into pieces
    device    row_length       ->  positions, KV slots, lengths, drafts, random numbers

The host reads none of the device's numbers. Only where a step is done when its launch returns, as on a CPU, it reads
the lengths at once, because attention there is planned with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import TokenPlaces
from mysglang.srt.forward.worker_batch import (
    DRAFTED,
    NO_DRAFT,
    ON_DEVICE,
    Bools,
    ForwardMode,
    Ints,
    Longs,
    ModelWorkerBatch,
)
from mysglang.srt.kernels.late_rows import MARK, NO_DRAFT_HERE, PlacedTokens, SlotTokens, StepTokens, place_tokens
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.feature_stager import LateLogits
from mysglang.srt.model_executor.step_columns import Columns, loc_columns
from mysglang.srt.model_executor.step_inputs import Uploaded
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer
from mysglang.srt.platforms.upload import Uploader

assert MARK == DRAFTED


@dataclass(frozen=True, slots=True)
class DraftStep:
    """A step of R rows and T tokens that tries drafts."""

    batch: ModelWorkerBatch
    """`input_ids` are ON_DEVICE or DRAFTED where the device has the token. `high_lens` are there unless the
    host has read all lengths.
    """
    places: TokenPlaces
    drafts: Tensor
    """[T] int64 the draft that the host proposes at each token; NO_DRAFT_HERE where it proposes none."""
    hosted: Bools
    """[R] True for rows whose drafts the host proposes, even if none of them is accepted."""
    columns: Columns
    """Columns of S rows of logits and Y rows that yield: `logits_row` [S] the row, counted in Y; `with_logits` [S] the
    token of the step; `yielding` [Y] the slots; `firsts` [Y] where the logits of each row begin; `first_tokens` [Y]
    the token of the step that these are behind.
    """

    @property
    def late(self) -> LateLogits | None:
        """None if the host knows all lengths."""
        if self.batch.high_lens is None:
            return None
        return LateLogits(self.places.positions, self.columns["with_logits"].astype(np.int64))


class LateRows:
    """Keeps, for each slot, the result of its row's last step with drafts."""

    def __init__(
        self,
        tables: DeviceTables,
        page_size: int,
        tokens_per_step: int,
        uploader: Uploader,
        *,
        read_lengths: bool,
    ) -> None:
        """`read_lengths`: True if the host can read from the device without waiting, and attention needs the
        lengths.
        """
        self._tables = tables
        self._page_size = page_size
        self._uploader = uploader
        self._read_lengths = read_lengths
        self.slot_buffers = (
            SlotBuffer("row_length", 8, Keeping.DERIVED),
            SlotBuffer("recent_tokens", 8 * tokens_per_step, Keeping.DERIVED),
        )
        slots = len(tables.newest)
        self.slots = SlotTokens(
            tables.newest,
            torch.zeros(slots, dtype=torch.int64, device=tables.newest.device),
            torch.zeros(slots, tokens_per_step, dtype=torch.int64, device=tables.newest.device),
        )

    def commit(self, up: Uploaded, positions: Tensor, drafts: Tensor, tokens: Tensor) -> Tensor:
        """Returns how many of the tokens [S] of each row that yields count, [Y], and records them in the device's
        tables.

        up: `DraftStep.columns`. positions, drafts: [T] of the tokens of the step. The token chosen after a position is
        accepted if it equals the draft at the next position.
        """
        behind = torch.nn.functional.pad(drafts[1:], (0, 1), value=NO_DRAFT_HERE)
        agreed = tokens == behind.index_select(0, up["with_logits"])
        counts = leading(agreed, up["logits_row"], up["firsts"])
        self._tables.record(up["yielding"], tokens.index_select(0, up["firsts"] + counts - 1))
        slots, row_of = up["yielding"], up["logits_row"]
        self.slots.row_length.index_copy_(0, slots, positions.index_select(0, up["first_tokens"]) + counts)
        place = torch.arange(len(tokens), device=tokens.device) - up["firsts"].index_select(0, row_of)
        self.slots.recent.index_put_((slots.index_select(0, row_of), place), tokens)
        return counts

    @property
    def width(self) -> int:
        """Tokens of a decoding row in a step at most."""
        return self.slots.recent.shape[1]

    def place(self, up: Uploaded) -> PlacedTokens:
        """Queues the placing of a step's tokens. up: `token_columns`."""
        tables = self._tables
        tokens = StepTokens(*(up[name] for name in StepTokens._fields))
        return place_tokens(up["input_ids"], tokens, self.slots, tables.locs(up), tables.pages, self._page_size)

    def begin(self, batch: ModelWorkerBatch) -> DraftStep:
        """Places the tokens of a step. The page table must have the step's pages."""
        per_row = _logits_per_row(batch)
        placed = self.place(self._uploader.upload(token_columns(batch, self.width)))
        places = TokenPlaces(placed.ids, placed.positions, placed.locs, placed.seq_lens)
        # Bounds also where the host knows all lengths: a step must not be computed in another way because of that.
        high_lens: Ints | None = batch.most_lens
        seq_lens = batch.seq_lens
        if self._read_lengths:
            high_lens, seq_lens = None, placed.seq_lens.numpy()
        step = replace(
            batch,
            mode=ForwardMode.EXTEND,
            seq_lens=seq_lens,
            high_lens=high_lens,
            table_writes=None,
            drafts=None,
            shared=None,
            logits_per_row=per_row,
        )
        hosted = np.zeros(batch.num_rows, dtype=np.bool_)
        if batch.drafts is not None:
            hosted[batch.drafts.rows] = True
        return DraftStep(step, places, placed.drafts, hosted, logits_columns(batch, per_row))


@dataclass(frozen=True, slots=True)
class Room:
    """The layout of a captured step: `rows` rows, each with space for `width` tokens."""

    rows: int
    width: int

    @property
    def tokens(self) -> int:
        return self.rows * self.width

    def tokens_of(self, batch: ModelWorkerBatch) -> Longs:
        """Returns the index at which each token of a batch is stored, [T]."""
        row, place = rows_and_places(batch.extend_lens)
        found: Longs = row * self.width + place
        return found

    def padded(self, column: npt.NDArray[Any], padding: int) -> npt.NDArray[Any]:
        """Returns the column [rows, …] of a batch's rows, with the value `padding` in the rows after them."""
        filled = np.full((self.rows, *column.shape[1:]), padding, dtype=column.dtype)
        filled[: len(column)] = column
        return filled


def token_columns(
    batch: ModelWorkerBatch, tokens_per_step: int, room: Room | None = None, padding_slot: int = 0
) -> Columns:
    """Returns the host's part of `StepTokens`, with the ids and with the KV slots of rows whose start it knows.

    room: the layout of a captured step; None: all tokens lie close together. Rows of padding have one token, in
    `padding_slot` at position 0, and write the null page, as what fills rows up does.
    """
    lens = batch.extend_lens
    runs, known = expected_tokens(batch, 2 * tokens_per_step)
    starts = np.where(batch.seq_lens == ON_DEVICE, np.int64(ON_DEVICE), batch.seq_lens - lens).astype(np.int64)
    ids, slots = batch.input_ids.astype(np.int64), batch.slots.astype(np.int64)
    locs = [each.astype(np.int64) for each in batch.out_cache_locs]
    if room is None:
        rows, places = rows_and_places(lens)
    else:
        rows, places = rows_and_places(np.full(room.rows, room.width, dtype=np.int32))
        at = room.tokens_of(batch)
        ids = _spread(ids, at, room.tokens, ON_DEVICE)
        locs = [_spread(each, at, room.tokens, 0) for each in locs]
        slots, lens = room.padded(slots, padding_slot), room.padded(lens, 1)
        starts, runs, known = room.padded(starts, 0), room.padded(runs, NO_DRAFT), room.padded(known, -1)
    return {
        "input_ids": ids,
        "rows": rows,
        "places": places,
        "slots": slots,
        "starts": starts,
        "extend_lens": lens,
        "runs": runs,
        "known": known,
        **dict(zip(loc_columns(len(locs)), locs, strict=True)),
    }


def rows_and_places(lens: Ints) -> tuple[Longs, Longs]:
    """Returns, [T], the row of each token, and its index in the row. lens: [R] tokens of each row."""
    rows = np.repeat(np.arange(len(lens), dtype=np.int64), lens)
    begin = np.cumsum(lens, dtype=np.int64) - lens
    places: Longs = np.arange(len(rows), dtype=np.int64) - begin[rows]
    return rows, places


def _spread(column: Longs, at: Longs, count: int, filling: int) -> Longs:
    spread: Longs = np.full(count, filling, dtype=np.int64)
    spread[at] = column
    return spread


def expected_tokens(batch: ModelWorkerBatch, length: int) -> tuple[Longs, Longs]:
    """Returns the tokens that the host expects of each row, [R, length], and the position of the first of them, [R]; -1
    if it expects none.
    """
    runs: npt.NDArray[np.int64] = np.full((batch.num_rows, length), NO_DRAFT, dtype=np.int64)
    known: npt.NDArray[np.int64] = np.full(batch.num_rows, -1, dtype=np.int64)
    if (drafts := batch.drafts) is not None:
        runs[drafts.rows, : drafts.runs.shape[1]] = drafts.runs[:, :length]
        known[drafts.rows] = drafts.known
    return runs, known


def _logits_per_row(batch: ModelWorkerBatch) -> Ints:
    """Returns how many tokens of each row need logits, [R]: all tokens of a decoding row, the last one of a prompt."""
    first = np.cumsum(batch.extend_lens) - batch.extend_lens
    decoding = batch.input_ids[first] == ON_DEVICE
    return np.where(batch.yields, np.where(decoding, batch.extend_lens, 1), 0).astype(np.int32)


def logits_columns(batch: ModelWorkerBatch, per_row: Ints, room: Room | None = None) -> Columns:
    """Returns `DraftStep.columns`. per_row: [R] how many of its last tokens have logits. room: the layout of a captured
    step; None: all tokens lie close together.
    """
    counts = per_row[batch.yields]
    ends = np.cumsum(batch.extend_lens, dtype=np.int64)
    has_logits = np.flatnonzero(np.arange(batch.num_tokens) >= np.repeat(ends - per_row, batch.extend_lens))
    first_tokens = (ends - per_row)[batch.yields]
    if room is not None:
        at = room.tokens_of(batch)
        has_logits, first_tokens = at[has_logits], at[first_tokens]
    return {
        "logits_row": np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        "firsts": (np.cumsum(counts) - counts).astype(np.int64),
        "first_tokens": first_tokens,
        "with_logits": has_logits,
        "yielding": batch.slots[batch.yields].astype(np.int64),
    }


def has_drafts(batch: ModelWorkerBatch) -> bool:
    """True if a row tries drafts, or begins at a position that only the device knows."""
    if batch.high_lens is not None:
        return True
    if batch.mode.is_decode:
        return batch.num_tokens > batch.num_rows
    return bool((batch.input_ids == DRAFTED).any())


def leading(agreed: Tensor, row_of: Tensor, firsts: Tensor) -> Tensor:
    """Returns one more than how many entries of each row agree, counted from its first, [Y]. The last entry of each row
    does not agree.

    agreed: [S] bool, row_of: [S], firsts: [Y] where rows begin in these, int64.
    """
    place = torch.arange(len(agreed), device=agreed.device) - firsts.index_select(0, row_of)
    missed = torch.where(agreed, len(agreed), place)
    most = torch.full_like(firsts, len(agreed))
    return most.scatter_reduce(0, row_of, missed, "amin") + 1
