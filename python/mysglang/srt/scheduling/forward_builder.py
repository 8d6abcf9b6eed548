"""ForwardBuilder: makes the ModelWorkerBatch of a ScheduleBatch. Columns only; no value of a token in flight is
needed.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.worker_batch import (
    DRAFTED,
    ON_DEVICE,
    Bools,
    EmbedColumns,
    HiddenColumns,
    Ints,
    LogprobColumns,
    ModelWorkerBatch,
)
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import PrefixGrouper
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.books import LogprobBook
from mysglang.srt.scheduling.decode_planner import Growth
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder

NO_IDS: Ints = np.zeros(0, dtype=np.int32)


class ForwardBuilder:
    """Builds the batch that a worker runs (ModelWorkerBatch) from a planned step."""

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        growth: Growth,
        sampling: SamplingBuilder,
        prefix_groups: PrefixGrouper,
        prompt_groups: PrefixGrouper,
    ) -> None:
        """prefix_groups, prompt_groups: find what rows share in decode steps and in steps with prompts."""
        self._table = table
        self._growth = growth
        self._kv = kv
        self._prefix_groups = prefix_groups
        self._prompt_groups = prompt_groups
        self._sampling = sampling
        self._unknown_ids: Ints = np.full(table.num_slots, ON_DEVICE, dtype=np.int32)

    def build(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        """Returns the columns of `batch`, with every page-table change since the last build."""
        decode = batch.mode.is_decode
        return ModelWorkerBatch(
            mode=batch.mode,
            input_ids=self._token_ids(batch),
            slots=batch.slots,
            seq_lens=batch.high_lens if batch.late is None else late_lens(batch.high_lens, batch.late),
            extend_lens=batch.lens,
            out_cache_locs=self._locations(batch),
            yields=batch.yields,
            sampling=self._sampling.columns(batch),
            table_writes=self._kv.take_writes(),
            sampling_now=self._sampling.now(batch),
            logprobs=self._logprobs(batch),
            hidden=self._hidden(batch),
            embeds=None if decode else self._embeds(batch),
            waits_for_mask=self._table.waits_for_mask(batch.slots, batch.yields),
            drafts=self._growth.drafts(batch),
            high_lens=None if batch.late is None else batch.high_lens,
            second_texts=None if decode else self._table.second_text[batch.slots],
            states=self._kv.take_states(batch.slots, batch.starts),
            shared=self._prefix_groups.find(batch.slots) if decode else None,
            prompt_prefixes=None if decode else self._prompt_groups.find(batch.slots),
        )

    def _token_ids(self, batch: ScheduleBatch) -> Ints:
        if batch.mode.is_decode:
            return self._decoded_ids(batch.lens, batch.new_tokens)
        tokens = self._table.tokens
        prompts = slice(batch.num_prompts)
        rows = zip(*(column[prompts].tolist() for column in (batch.slots, batch.starts, batch.lens)), strict=True)
        ids = [tokens[slot, start : start + n] for slot, start, n in rows]
        lens = batch.lens[batch.num_prompts :]
        return np.concatenate([*ids, self._decoded_ids(lens, int(lens.sum()))])

    def _decoded_ids(self, lens: Ints, total: int) -> Ints:
        """Returns the input ids of decoding rows: the newest token, and the drafts after it. lens: [R], `total` their
        sum.
        """
        if total == len(lens):
            return self._unknown_ids[:total]
        ids: Ints = np.full(total, DRAFTED, dtype=np.int32)
        ids[np.cumsum(lens) - lens] = ON_DEVICE
        return ids

    def _locations(self, batch: ScheduleBatch) -> tuple[Ints, ...]:
        """Returns where the new tokens are written, [T], in each page space."""
        kv = self._kv
        if batch.mode.is_decode and batch.new_tokens == len(batch) and batch.late is None:
            return kv.in_spaces(kv.next_locations(batch.slots, batch.starts))
        found = kv.in_spaces(kv.locations(batch.slots, batch.high_lens - batch.lens, batch.lens))
        if batch.late is not None:
            late = np.repeat(batch.late, batch.lens)
            for locations in found:
                locations[late] = ON_DEVICE
        return found

    def _embeds(self, batch: ScheduleBatch) -> EmbedColumns | None:
        rows = self._table.embedded.rows(batch.slots[: batch.num_prompts])
        offsets = np.cumsum(batch.lens) - batch.lens
        tokens, vectors = [], []
        for row in rows.tolist():
            embeds = self._table.req(int(batch.slots[row])).embeds
            assert embeds is not None
            start = int(batch.starts[row])
            # A request that was retracted also computes its own tokens, which have ids.
            chunk = embeds[start : start + int(batch.lens[row])]
            tokens.append(np.arange(len(chunk), dtype=np.int32) + offsets[row])
            vectors.append(chunk)
        return EmbedColumns(np.concatenate(tokens).astype(np.int32), np.concatenate(vectors)) if tokens else None

    def _hidden(self, batch: ScheduleBatch) -> HiddenColumns | None:
        rows = self._table.wants_hidden.rows(batch.slots)
        if not len(rows):
            return None
        counts: Ints = np.zeros(len(batch), dtype=np.int32)
        offsets = np.cumsum(batch.lens) - batch.lens
        tokens = [NO_IDS]
        for row in rows.tolist():
            book = self._table.req(int(batch.slots[row])).hidden
            assert book is not None
            start, length = int(batch.starts[row]), int(batch.lens[row])
            # The tokens of steps in flight are not in the book yet, and none of them is a position of this step.
            first = min(max(book.have - start, 0), length)
            counts[row] = length - first
            tokens.append(np.arange(first, length, dtype=np.int32) + offsets[row])
        return HiddenColumns(np.concatenate(tokens).astype(np.int32), counts) if counts.any() else None

    def _logprobs(self, batch: ScheduleBatch) -> LogprobColumns | None:
        if not len(self._table.wants_logprobs.rows(batch.slots)):
            return None
        wanted = self._table.wants_logprobs.of(batch.slots)
        top_num = np.zeros(len(batch), dtype=np.int32)
        token_ids = [NO_IDS] * len(batch)
        positions, targets = [NO_IDS], [NO_IDS]
        counts = np.zeros(len(batch), dtype=np.int32)
        offsets = np.cumsum(batch.lens) - batch.lens
        for row in np.flatnonzero(wanted).tolist():
            slot = int(batch.slots[row])
            book = self._table.req(slot).logprobs
            assert book is not None
            top_num[row] = book.top_num
            token_ids[row] = book.token_ids
            if batch.mode.is_decode or book.prompt_done:
                continue
            start = int(batch.starts[row])
            first, end = self.prompt_span(book, slot, start, int(batch.lens[row]))
            if first < end:
                counts[row] = end - first
                positions.append(np.arange(first - 1 - start, end - 1 - start, dtype=np.int32) + offsets[row])
                targets.append(self._table.tokens[slot, first:end].copy())
        return LogprobColumns(
            rows=wanted,
            top_num=top_num,
            token_ids=token_ids,
            prompt_positions=np.concatenate(positions).astype(np.int32),
            prompt_targets=np.concatenate(targets),
            prompt_counts=counts,
        )

    def prompt_span(self, book: LogprobBook, slot: int, start: int, length: int) -> tuple[int, int]:
        """Returns the prompt tokens [first, end) whose logprobs the chunk [start, start + length) gives.

        The logits at a position predict the token after it, so a chunk also gives that of the token that follows it.
        """
        first = max(book.prompt_start, start + 1)
        end = min(start + length + 1, int(self._table.prompt_len[slot]))
        return first, end


def late_lens(high_lens: Ints, late: Bools) -> Ints:
    """Returns the lengths, [R], with ON_DEVICE for rows whose length only the device knows."""
    lens: Ints = np.where(late, np.int32(ON_DEVICE), high_lens)
    return lens
