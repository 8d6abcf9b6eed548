"""LateRows: replaces lengths that only the device knows by their values, and returns the step with all lengths known.

Where steps are done when they are launched, as on a CPU, the device's lengths can be read at once. Elsewhere no such
step comes: the scheduler settles the step before it first (`Worker.late_lengths`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.worker_batch import (
    DRAFTED,
    NO_DRAFT,
    ON_DEVICE,
    Bools,
    ForwardMode,
    Ints,
    ModelWorkerBatch,
    Slots,
)
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.step_columns import Columns
from mysglang.srt.model_executor.step_inputs import Uploaded
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer

NO_DRAFT_HERE = -2
"""In the place of a draft. The token of a row that is not finite is -1, and must not be taken for an accepted draft."""


@dataclass(frozen=True, slots=True)
class KnownStep:
    """A step of R rows and T tokens with all lengths known. Newest tokens and drafts are the device's."""

    batch: ModelWorkerBatch
    """`input_ids` are ON_DEVICE or DRAFTED where the device has the token."""
    drafts: npt.NDArray[np.int64]
    """[T] the draft that the host proposes at each token; NO_DRAFT_HERE where it proposes none."""
    hosted: Bools
    """[R] True for rows whose drafts the host proposes, even if none of them is accepted."""
    columns: Columns
    """Columns of S rows of logits and Y rows that yield: `logits_row` [S] the row, counted in Y; `with_logits` [S] the
    token of the step; `yielding` [Y] the slots; `firsts` [Y] where the logits of each row begin; `starts` [Y] tokens of
    the row before them.
    """


class LateRows:
    """Remembers by slot what the last step with drafts gave each row."""

    def __init__(self, tables: DeviceTables, page_size: int, tokens_per_step: int) -> None:
        self._tables = tables
        self._page_size = page_size
        self.slot_buffers = (
            SlotBuffer("row_length", 8, Keeping.DERIVED),
            SlotBuffer("recent_tokens", 8 * tokens_per_step, Keeping.DERIVED),
        )
        slots = len(tables.newest)
        self._lens = torch.zeros(slots, dtype=torch.int64, device=tables.newest.device)
        """Number of tokens whose keys count."""
        self._recent = torch.zeros(slots, tokens_per_step, dtype=torch.int64, device=tables.newest.device)
        """Newest tokens of the row from the last step."""

    def remember(self, up: Uploaded, tokens: Tensor, counts: Tensor) -> None:
        """The step has given its rows these tokens [S], of which counts [Y] count."""
        slots, row_of = up["yielding"], up["logits_row"]
        self._lens.index_copy_(0, slots, up["starts"] + counts)
        place = torch.arange(len(tokens), device=tokens.device) - up["firsts"].index_select(0, row_of)
        self._recent.index_put_((slots.index_select(0, row_of), place), tokens)

    def known(self, batch: ModelWorkerBatch) -> KnownStep:
        """The step with its lengths. The page table must have the step's pages."""
        late = batch.seq_lens == ON_DEVICE
        ends, locs = batch.seq_lens, batch.out_cache_locs
        if late.any():
            ends = np.where(late, self._lens.numpy()[batch.slots].astype(np.int32) + batch.extend_lens, ends)
            locs = self._locations(batch, ends, late)
        drafts, hosted = self._drafts(batch, ends)
        per_row = self._logits_per_row(batch)
        counts = per_row[batch.yields]
        begin = np.cumsum(batch.extend_lens) - batch.extend_lens
        has_logits = np.arange(batch.num_tokens) >= np.repeat(begin + batch.extend_lens - per_row, batch.extend_lens)
        known = replace(
            batch,
            mode=ForwardMode.EXTEND,
            seq_lens=ends,
            out_cache_locs=locs,
            table_writes=None,
            drafts=None,
            high_lens=None,
            shared=None,
            logits_per_row=per_row,
        )
        columns: Columns = {
            "logits_row": np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            "firsts": (np.cumsum(counts) - counts).astype(np.int64),
            "starts": (ends - per_row)[batch.yields].astype(np.int64),
            "with_logits": np.flatnonzero(has_logits),
            "yielding": batch.slots[batch.yields].astype(np.int64),
        }
        return KnownStep(known, drafts, hosted, columns)

    def _logits_per_row(self, batch: ModelWorkerBatch) -> Ints:
        """[R] all tokens of a row that decodes, the last one of a prompt."""
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        decoding = batch.input_ids[first] == ON_DEVICE
        return np.where(batch.yields, np.where(decoding, batch.extend_lens, 1), 0).astype(np.int32)

    def _drafts(self, batch: ModelWorkerBatch, ends: Ints) -> tuple[npt.NDArray[np.int64], Bools]:
        """[T] the host's draft at each token, and [R] for which rows the host proposes."""
        drafts = np.full(batch.num_tokens, NO_DRAFT_HERE, dtype=np.int64)
        hosted = np.zeros(batch.num_rows, dtype=np.bool_)
        if (columns := batch.drafts) is None:
            return drafts, hosted
        hosted[columns.rows] = True
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        for row, run, known in zip(columns.rows.tolist(), columns.runs, columns.known.tolist(), strict=True):
            count = int(batch.extend_lens[row]) - 1
            unknown = int(ends[row]) - count - known
            if unknown and not self._came_true(int(batch.slots[row]), run[:unknown]):
                continue
            found = run[unknown : unknown + count]
            found = found[found != NO_DRAFT]
            drafts[first[row] + 1 : first[row] + 1 + len(found)] = found
        return drafts, hosted

    def _came_true(self, slot: int, run: Ints) -> bool:
        """True if the step before gave the row these tokens. A step without drafts gives the newest token."""
        *before, newest = run.tolist()
        if int(self._tables.newest[slot]) != newest:
            return False
        return not before or self._recent[slot, : len(before)].tolist() == before

    def _locations(self, batch: ModelWorkerBatch, ends: Ints, late: Bools) -> tuple[Ints, ...]:
        """The KV slots in each page space, with those of late rows filled in from the page table."""
        lens = batch.extend_lens
        row_of: Slots = np.repeat(np.arange(batch.num_rows), lens)
        places = np.arange(batch.num_tokens) + np.repeat(ends - np.cumsum(lens), lens)
        mine = late[row_of]
        slots, places = batch.slots[row_of[mine]], places[mine]
        found = []
        for table, locs in zip(self._tables.pages, batch.out_cache_locs, strict=True):
            pages = table.numpy()[slots, places // self._page_size]
            filled = locs.copy()
            filled[mine] = pages * self._page_size + places % self._page_size
            found.append(filled)
        return tuple(found)


def has_drafts(batch: ModelWorkerBatch) -> bool:
    """True if a row tries drafts, or begins at a position that only the device knows."""
    if batch.high_lens is not None:
        return True
    if batch.mode.is_decode:
        return batch.num_tokens > batch.num_rows
    return bool((batch.input_ids == DRAFTED).any())
