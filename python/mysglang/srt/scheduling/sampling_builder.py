"""SamplingBuilder: the sampling columns of a step, from per-slot columns that are filled once for each request.

While the rows of consecutive decode steps stay the same, the same SamplingColumns object is handed out again, so that
a worker keeps its device copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mysglang.srt.forward.worker_batch import (
    Floats,
    Ints,
    LogitEdits,
    Longs,
    PenaltyReset,
    PenaltyRows,
    SamplingColumns,
    Slots,
)
from mysglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.trait import Trait

NO_LINE = -1

DECISIVE_BIAS = 1e20
"""A logit that is raised or lowered by so much decides by itself; by more, it would not be finite in float32 once it is
divided by a small temperature."""


class SamplingBuilder:
    """Per-slot sampling columns; `open` and `close` follow the request table's."""

    def __init__(self, table: RequestTable, eos_token_ids: tuple[int, ...]) -> None:
        self._table = table
        num_slots = table.num_slots
        self._eos = np.asarray(eos_token_ids, dtype=np.int32)
        self._temperature: Floats = np.ones(num_slots, dtype=np.float32)
        self._top_p: Floats = np.ones(num_slots, dtype=np.float32)
        self._top_k: Ints = np.ones(num_slots, dtype=np.int32)
        self._min_p: Floats = np.zeros(num_slots, dtype=np.float32)
        self._seeds: Longs = np.zeros(num_slots, dtype=np.int64)
        self._penalties: Floats = np.zeros((num_slots, 3), dtype=np.float32)
        self._biased = Trait(num_slots)
        self._biases: dict[int, tuple[Ints, Floats]] = {}
        """By slot, for those that have some: token ids and what is added to their logits."""
        self._has_min = Trait(num_slots)
        self._lines = PenaltyLines(num_slots)
        self._last: tuple[Slots, Longs, SamplingColumns] | None = None

    def open(self, slot: int, params: SamplingParams) -> None:
        """Fill the slot's columns; the line of a request without penalties is NO_LINE."""
        greedy = params.greedy
        self._temperature[slot] = 1.0 if greedy else params.temperature
        self._top_k[slot] = 1 if greedy else (TOP_K_ALL if params.top_k == -1 else params.top_k)
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seeds[slot] = params.sampling_seed or 0
        self._penalties[slot] = (params.frequency_penalty, params.presence_penalty, params.repetition_penalty)
        self._biased[slot] = bool(params.logit_bias)
        if params.logit_bias:
            self._biases[slot] = _bias_arrays(params.logit_bias)
        self._has_min[slot] = params.min_new_tokens > 0
        if params.penalized:
            self._lines.take(slot)

    def close(self, slot: int) -> None:
        """Give the slot's penalty line back, if it has one."""
        self._biased[slot] = self._has_min[slot] = False
        self._biases.pop(slot, None)
        self._lines.give_back(slot)

    def columns(self, batch: ScheduleBatch) -> SamplingColumns:
        """The columns for the rows of `batch`; the object of the last step if its rows were the same."""
        if self._last is not None:
            slots, lives, columns = self._last
            if same_array(slots, batch.slots) and same_array(lives, batch.lives):
                return columns
        columns = self._gather(batch.slots)
        self._last = (batch.slots, batch.lives, columns)
        return columns

    def _gather(self, slots: Slots) -> SamplingColumns:
        top_k, top_p, min_p = self._top_k[slots], self._top_p[slots], self._min_p[slots]
        return SamplingColumns(
            temperature=self._temperature[slots],
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seeds=self._seeds[slots],
            all_greedy=bool((top_k == 1).all()),
            any_top_p=bool((top_p < 1).any()),
            any_top_k=bool((top_k < TOP_K_ALL).any()),
            any_min_p=bool((min_p > 0).any()),
            penalties=self._penalty_rows(slots),
            bias=self._bias(slots),
        )

    def _penalty_rows(self, slots: Slots) -> PenaltyRows | None:
        lines = self._lines.of(slots)
        rows = np.flatnonzero(lines != NO_LINE).astype(np.int32)
        if not len(rows):
            return None
        values = self._penalties[slots[rows]]
        return PenaltyRows(rows, lines[rows], values[:, 0], values[:, 1], values[:, 2])

    def _bias(self, slots: Slots) -> LogitEdits | None:
        rows = self._biased.rows(slots)
        if not len(rows):
            return None
        tokens, values = zip(*(self._biases[int(slots[row])] for row in rows), strict=True)
        counts = [len(some) for some in tokens]
        return LogitEdits(np.repeat(rows, counts).astype(np.int32), np.concatenate(tokens), np.concatenate(values))

    def penalty_reset(self, batch: ScheduleBatch) -> PenaltyReset | None:
        """What the count lines of rows that finish their prompt in this step start from."""
        prompts = slice(batch.num_prompts)
        rows = np.flatnonzero((self._lines.of(batch.slots[prompts]) != NO_LINE) & batch.yields[prompts])
        if not len(rows):
            return None
        slots = batch.slots[rows]
        table = self._table
        return PenaltyReset(
            self._lines.of(slots),
            [table.tokens[slot, : 0 if table.embedded[slot] else table.prompt_len[slot]].copy() for slot in slots],
            [table.tokens[slot, table.prompt_len[slot] : table.known[slot]].copy() for slot in slots],
        )

    def forbidden(self, batch: ScheduleBatch) -> LogitEdits | None:
        """EOS and stop tokens of rows that must not end yet. The token to be sampled stands at `starts + lens`."""
        if not self._has_min.count:
            return None
        slots, table = batch.slots, self._table
        early = self._has_min.of(slots) & (batch.starts + batch.lens + 1 <= table.min_len[slots]) & batch.yields
        # With a grammar its mask says so, which alone knows whether there is anything but the end.
        early &= ~table.constrained.of(slots)
        rows = np.flatnonzero(early)
        if not len(rows):
            return None
        ids = [
            np.union1d(self._eos, np.asarray(table.req(int(slots[row])).sampling.stop_token_ids, dtype=np.int32))
            for row in rows
        ]
        counts = [len(row_ids) for row_ids in ids]
        total = int(sum(counts))
        return LogitEdits(
            np.repeat(rows, counts).astype(np.int32),
            np.concatenate(ids).astype(np.int32),
            np.full(total, -np.inf, dtype=np.float32),
        )


def same_array(one: Longs, other: Longs) -> bool:
    """Whether both hold the same; costs nothing where they are the same object."""
    return one is other or np.array_equal(one, other)


class PenaltyLines:
    """Which line of the worker's count table belongs to which slot; few lines, reused from the lowest."""

    def __init__(self, num_slots: int) -> None:
        self._line: Ints = np.full(num_slots, NO_LINE, dtype=np.int32)
        self._free: list[int] = []
        self._next = 0

    def of(self, slots: Slots) -> Ints:
        """Line of each slot, or NO_LINE."""
        lines: Ints = self._line[slots]
        return lines

    def take(self, slot: int) -> None:
        if self._free:
            self._line[slot] = self._free.pop()
            return
        self._line[slot] = self._next
        self._next += 1

    def give_back(self, slot: int) -> None:
        if self._line[slot] != NO_LINE:
            self._free.append(int(self._line[slot]))
            self._line[slot] = NO_LINE


def _bias_arrays(bias: Mapping[int, float]) -> tuple[Ints, Floats]:
    """Made once: a step of many rows with thousands of biases each must not go through all of them."""
    values = np.fromiter(bias.values(), dtype=np.float64, count=len(bias)).clip(-DECISIVE_BIAS, DECISIVE_BIAS)
    return np.fromiter(bias, dtype=np.int32, count=len(bias)), values.astype(np.float32)
