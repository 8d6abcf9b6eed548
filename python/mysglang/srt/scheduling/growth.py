"""Growth: by how much a decoding row grows in a step, and what the host can say of its length meanwhile.

    known     tokens whose value the host knows
    low       tokens whose keys and values are surely written, once the launched steps are done
    high      tokens for which there is memory: as many can be written at most

A step that tries drafts gives a row one token or several, and how many is known when its result is. Until then the row
is somewhere between `low` and `high`, and only the device knows where its next step begins. A row all of whose results
are here has low == high. Where every step gives every row one token the two are one column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from mysglang.srt.forward.worker import Worker
from mysglang.srt.forward.worker_batch import ON_DEVICE, Bools, DraftColumns, Ints, Longs, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.proposals import MakeProposer, Proposer
from mysglang.srt.scheduling.request_table import RequestTable


@dataclass(frozen=True, slots=True)
class DecodingRows:
    """What does not change while the same rows decode."""

    slots: Slots
    lives: Longs
    final_len: Ints
    ones: Ints
    yields: Bools


class Grown(msgspec.Struct, frozen=True, eq=False):
    """Rows that have a token to come, as the next step would leave them. All [R]."""

    slots: Slots
    lens: Ints
    """New tokens."""
    after: Ints
    """`high` after the step."""
    new_tokens: int
    """Sum of `lens`."""
    lows: Ints | None = None
    """`low` before the step, where rows may be shorter than `high`."""

    def __len__(self) -> int:
        return len(self.slots)


class Growth(Protocol):
    """Plans lengths for the decode planner, and corrects them when results come."""

    def must_settle(self, rows: DecodingRows) -> bool:
        """Whether a step of these rows cannot be planned before the result of the last one is here."""
        ...

    def grow(self, rows: DecodingRows) -> Grown:
        """Those that have a token to come. Others only wait for their result."""
        ...

    def grow_least(self, rows: DecodingRows) -> Grown:
        """The same with one token for each."""
        ...

    def give_back(self, slots: Slots) -> None:
        """Free what was set aside for drafts of these rows, no step of which is in flight."""
        ...

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        """The step is planned. Returns where its rows start, and where only the device knows that: both [R], the second
        None if there are no such rows, which start at ON_DEVICE.
        """
        ...

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        """What the host proposes for the rows of a step."""
        ...

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        """A step of which the rows got so many tokens is about to be applied. counts, alive: [R]."""
        ...


class OneToken:
    """One token for each row in each step."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table

    def must_settle(self, rows: DecodingRows) -> bool:
        return False

    def grow(self, rows: DecodingRows) -> Grown:
        slots, ones = rows.slots, rows.ones
        after = self._table.high[slots] + ones
        live = after < rows.final_len
        if np.count_nonzero(live) == len(slots):
            # The very array that came in: others know by it that nothing changed.
            return Grown(slots, ones, after, len(slots))
        slots = slots[live]
        return Grown(slots, ones[: len(slots)], after[live], len(slots))

    def grow_least(self, rows: DecodingRows) -> Grown:
        return self.grow(rows)

    def give_back(self, slots: Slots) -> None:
        """Nothing was."""

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        self._table.high[grown.slots] = grown.after
        return grown.after - grown.lens, None

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        return None

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        """Nothing was unknown."""


class Drafts:
    """Up to `table.widest` tokens for a row: one, and of the drafts behind it those that turn out right."""

    def __init__(self, table: RequestTable, kv: KvManager, proposer: Proposer, *, late_lengths: bool) -> None:
        """`late_lengths`: whether the worker takes steps of rows whose start only the device knows."""
        self._table = table
        self._proposer = proposer
        self._kv = kv
        self._late_lengths = late_lengths

    def must_settle(self, rows: DecodingRows) -> bool:
        table, slots = self._table, rows.slots
        return not self._late_lengths and not np.array_equal(table.low[slots], table.high[slots])

    def grow(self, rows: DecodingRows) -> Grown:
        return self._grow(rows, self._proposer.widths(rows.slots, self._table.widest[rows.slots]))

    def grow_least(self, rows: DecodingRows) -> Grown:
        return self._grow(rows, rows.ones)

    def give_back(self, slots: Slots) -> None:
        self._kv.trim_rows(slots, self._table.high[slots])

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        table, slots = self._table, grown.slots
        low, high = table.low[slots], table.high[slots]
        table.high[slots] = grown.after
        # Whatever a step before it gave, this one writes at least the token that it begins with.
        table.low[slots] = low + 1
        late: Bools = low != high
        return (np.where(late, np.int32(ON_DEVICE), high), late) if late.any() else (high, None)

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        decoding = batch.num_prompts
        return self._proposer.columns(batch, decoding + np.flatnonzero(batch.lens[decoding:] > 1))

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        rows = alive.copy()
        rows[: batch.num_prompts] = False
        slots, got = batch.slots[rows], counts[rows]
        drafted = self._table.drafted
        drafted[slots, 0] += batch.lens[rows] - 1
        drafted[slots, got] += 1
        tried = batch.lens[rows] > 1
        self._proposer.hear(slots[tried], got[tried] - 1)
        self._table.low[slots] += got - 1
        self._table.high[slots] -= batch.lens[rows] - got

    def _grow(self, rows: DecodingRows, widths: Ints) -> Grown:
        high = self._table.high[rows.slots]
        # The last token of an answer is never computed with, so nothing is written for it.
        after = np.minimum(high + widths, rows.final_len - 1)
        live = after > high
        slots, lens = rows.slots, after - high
        if np.count_nonzero(live) < len(live):
            slots, lens, after = slots[live], lens[live], after[live]
        return Grown(slots, lens, after, int(lens.sum()), self._table.low[slots])


def growth_of(worker: Worker, table: RequestTable, kv: KvManager, proposer: MakeProposer) -> Growth:
    """As the worker's steps are."""
    if worker.tokens_per_step == 1:
        return OneToken(table)
    return Drafts(table, kv, proposer(table), late_lengths=worker.late_lengths)
