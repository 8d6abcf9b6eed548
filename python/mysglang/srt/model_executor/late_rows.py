"""LateRows: from a step whose rows begin where only the device knows to the same step with everything known.

Where steps are done when they are launched, as on a CPU, the device's word can be had at once. Elsewhere no such step
comes: the scheduler settles the step before it first (`Worker.late_lengths`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import NO_DRAFT, ON_DEVICE, Bools, Ints, ModelWorkerBatch, Slots
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.step_columns import Columns
from mysglang.srt.model_executor.step_inputs import Uploaded
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer

NOTHING_EXPECTED = -2
"""Behind the last draft. The token of a row that is no number is -1, which must not count as a draft."""


@dataclass(frozen=True, slots=True)
class KnownStep:
    """All lengths and tokens are known but the newest ones, which the device has."""

    batch: ModelWorkerBatch
    columns: Columns
    """Of S rows of logits and Y rows that yield: `expected` [S] the draft behind each, `logits_row` [S] whose it is,
    counted in Y, `with_logits` [S] which token of the step; `yielding` [Y] the slots, `firsts` [Y] where the logits of
    each begin, `starts` [Y] tokens of the row before them."""


class LateRows:
    """What the last step of this kind left behind, by slot."""

    def __init__(self, tables: DeviceTables, page_size: int, tokens_per_step: int) -> None:
        self._tables = tables
        self._page_size = page_size
        self.slot_buffers = (
            SlotBuffer("row_length", 8, Keeping.DERIVED),
            SlotBuffer("recent_tokens", 8 * tokens_per_step, Keeping.DERIVED),
        )
        slots = len(tables.newest)
        self._lens = torch.zeros(slots, dtype=torch.int64, device=tables.newest.device)
        """Tokens whose keys count."""
        self._recent = torch.zeros(slots, tokens_per_step, dtype=torch.int64, device=tables.newest.device)
        """What the step gave the row."""

    def remember(self, up: Uploaded, tokens: Tensor, counts: Tensor) -> None:
        """The step has given its rows these tokens [S], of which counts [Y] count."""
        slots, row_of = up["yielding"], up["logits_row"]
        self._lens.index_copy_(0, slots, up["starts"] + counts)
        place = torch.arange(len(tokens), device=tokens.device) - up["firsts"].index_select(0, row_of)
        self._recent.index_put_((slots.index_select(0, row_of), place), tokens)

    def known(self, batch: ModelWorkerBatch) -> KnownStep:
        """The page table has this step's pages."""
        late = batch.seq_lens == ON_DEVICE
        ends, locs = batch.seq_lens, batch.out_cache_locs
        if late.any():
            ends = np.where(late, self._lens.numpy()[batch.slots].astype(np.int32) + batch.extend_lens, ends)
            locs = self._locations(batch, ends, late)
        expected = self._drafts(batch, ends)
        per_row = self._logits_per_row(batch)
        counts = per_row[batch.yields]
        begin = np.cumsum(batch.extend_lens) - batch.extend_lens
        ids = batch.input_ids.copy()
        drafted = np.flatnonzero(ids < ON_DEVICE)
        # A draft stands behind the token that expects it. Where there is none, any token does.
        ids[drafted] = np.maximum(expected[drafted - 1], 0)
        has_logits = np.arange(len(ids)) >= np.repeat(begin + batch.extend_lens - per_row, batch.extend_lens)
        known = replace(
            batch,
            mode=ForwardMode.EXTEND,
            input_ids=ids,
            seq_lens=ends,
            out_cache_locs=locs,
            table_writes=None,
            drafts=None,
            high_lens=None,
            shared=None,
            logits_per_row=per_row,
        )
        columns: Columns = {
            "expected": expected[has_logits],
            "logits_row": np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            "firsts": (np.cumsum(counts) - counts).astype(np.int64),
            "starts": (ends - per_row)[batch.yields].astype(np.int64),
            "with_logits": np.flatnonzero(has_logits),
            "yielding": batch.slots[batch.yields].astype(np.int64),
        }
        return KnownStep(known, columns)

    def _logits_per_row(self, batch: ModelWorkerBatch) -> Ints:
        """[R] all tokens of a row that decodes, the last one of a prompt."""
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        decoding = batch.input_ids[first] == ON_DEVICE
        return np.where(batch.yields, np.where(decoding, batch.extend_lens, 1), 0).astype(np.int32)

    def _drafts(self, batch: ModelWorkerBatch, ends: Ints) -> npt.NDArray[np.int64]:
        """[T] the draft behind each token; NOTHING_EXPECTED where there is none."""
        behind = np.full(batch.num_tokens, NOTHING_EXPECTED, dtype=np.int64)
        columns = batch.drafts
        if columns is None:
            return behind
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        for row, run, known in zip(columns.rows.tolist(), columns.runs, columns.known.tolist(), strict=True):
            count = int(batch.extend_lens[row]) - 1
            unknown = int(ends[row]) - count - known
            if unknown and not self._came_true(int(batch.slots[row]), run[:unknown]):
                continue
            drafts = run[unknown : unknown + count]
            drafts = drafts[drafts != NO_DRAFT]
            behind[first[row] : first[row] + len(drafts)] = drafts
        return behind

    def _came_true(self, slot: int, run: Ints) -> bool:
        """Whether the step before gave the row these tokens."""
        return np.array_equal(self._recent[slot, : len(run)].numpy(), run)

    def _locations(self, batch: ModelWorkerBatch, ends: Ints, late: Bools) -> tuple[Ints, ...]:
        """Of each page space, with the rows filled in that begin where only the device knows."""
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
