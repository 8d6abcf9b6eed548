"""DecodePlanner: the next tokens of all rows that decode, and what gives way when memory is short.

Each row has three lengths on the host:

    known     tokens whose value the host knows
    low       tokens whose keys and values are surely written, once the launched steps are done
    high      tokens for which there is memory: as many can be written at most

A `Growth` says by how much the rows grow in a step. `OneToken` gives every row one token; then low and high are one
column. A step that tries drafts (`drafts.py`) gives a row one token or several, and how many is known when its result
is. Until then the row is somewhere between `low` and `high`, and only the device knows where its next step begins. A
row all of whose results are here has low == high.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from mysglang.srt.forward.worker_batch import Bools, DraftColumns, ForwardMode, Ints, Longs, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.outputs import Abort, FinishReason
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.prefill_planner import NewTokenRatio
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Retraction

OUT_OF_MEMORY = Abort(
    "Out of memory: the KV cache cannot hold this request. Raise --mem-fraction-static or --max-total-tokens.",
    status=500,
    kind="InternalServerError",
)


class DecodePlanner:
    """Plans decode steps. `growth` decides how many tokens a row may get in one."""

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        ratio: NewTokenRatio,
        retraction: Retraction,
        *,
        growth: Growth,
        end: Callable[[int, FinishReason], Req],
    ) -> None:
        self._table = table
        self._kv = kv
        self._lanes = lanes
        self._ratio = ratio
        self._retraction = retraction
        self._growth = growth
        self._end = end
        self._rows: DecodingRows | None = None
        self.failed: list[Req] = []
        """Requests that had to end because memory was short, until `StepPlanner.take_failed` takes them."""

    def plan(self, lane: Lane) -> ScheduleBatch | None:
        """Returns the next decode step for `lane`. None if no row needs another token, or if the result of the step in
        flight must be known first; then the lane has the reason.
        """
        growth = self._growth
        rows = self._rows_of(lane.slots)
        if growth.must_settle(rows):
            lane.late = True
            return None
        grown = growth.grow(rows)
        if len(grown) and not self._reserve(grown):
            # First the rows do without drafts: drafts only save time, and waiting or retracting costs some.
            if grown.new_tokens > len(grown) and self._reserve(least := growth.grow_least(rows)):
                grown = least
            elif lane.pending is not None:
                # The result of the step in flight may end a request, which frees memory. Retracting before that is
                # known might make a request compute everything again for nothing.
                lane.short = True
                return None
            else:
                grown = self._make_room(lane)
        if not len(grown):
            return None
        self._ratio.after_decode()
        slots = grown.slots
        rows = self._rows_of(slots)
        starts, late = growth.begin(grown)
        return ScheduleBatch(
            mode=ForwardMode.DECODE,
            slots=slots,
            lives=rows.lives,
            starts=starts,
            lens=grown.lens,
            high_lens=grown.after,
            late=late,
            yields=rows.yields,
            new_tokens=grown.new_tokens,
        )

    def _rows_of(self, slots: Slots) -> DecodingRows:
        """Returns the columns of these rows, kept while `slots` is the same array.

        A slot begins another life only after it left its lane, which then has another array.
        """
        if self._rows is None or self._rows.slots is not slots:
            ones = np.ones(len(slots), dtype=np.int32)
            table = self._table
            self._rows = DecodingRows(slots, table.life[slots], table.final_len[slots], ones, ones.astype(np.bool_))
        return self._rows

    def _reserve(self, grown: Grown) -> bool:
        return self._kv.extend_rows(grown.slots, grown.after, grown.lows)

    def _make_room(self, lane: Lane) -> Grown:
        """Retracts requests until the next token of the others fits."""
        growth = self._growth
        # Memory that was set aside for drafts comes back first: no request has to leave for it.
        growth.give_back(self._lanes.slots)
        grown = growth.grow_least(self._rows_of(lane.slots))
        while len(grown) and not self._reserve(grown):
            if self._retraction.retract_one() is None:
                # One request has all the memory, and its next token still does not fit: it can never go on.
                self.failed.append(self._end(int(grown.slots[0]), OUT_OF_MEMORY))
            grown = growth.grow_least(self._rows_of(lane.slots))
        if len(grown):
            # Set more memory aside from now on: this much was generated of what these rows may generate.
            slots, table = grown.slots, self._table
            generated = int((table.known[slots] - table.prompt_len[slots]).sum())
            max_new = int((table.final_len[slots] - table.prompt_len[slots]).sum())
            self._ratio.after_retraction(generated, max_new, len(slots))
        return grown


@dataclass(frozen=True, slots=True)
class DecodingRows:
    """Columns of the decoding rows that do not change while the same rows decode. All [R]."""

    slots: Slots
    lives: Longs
    final_len: Ints
    ones: Ints
    yields: Bools


class Grown(msgspec.Struct, frozen=True, eq=False):
    """Rows that have a token to come, and how long the next step makes them. All [R]."""

    slots: Slots
    lens: Ints
    """New tokens of each row."""
    after: Ints
    """`high` after the step."""
    new_tokens: int
    """Sum of `lens`."""
    lows: Ints | None = None
    """`low` before the step, where rows may be shorter than `high`."""

    def __len__(self) -> int:
        return len(self.slots)


class Growth(Protocol):
    """Predicts how many tokens each row has after the next decode step, and corrects this when results arrive."""

    def must_settle(self, rows: DecodingRows) -> bool:
        """True if the result of the last step is needed before a step of these rows can be planned."""
        ...

    def grow(self, rows: DecodingRows) -> Grown:
        """Returns the rows that need another token, with their lengths. Other rows only wait for their result."""
        ...

    def grow_least(self, rows: DecodingRows) -> Grown:
        """Advances the rows that need another token, by one token each."""
        ...

    def give_back(self, slots: Slots) -> None:
        """Frees the memory that was reserved for drafts of these rows. No step of theirs is in flight."""
        ...

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        """Advances the rows of a planned step. Returns ([R] where each row starts, [R] for which rows only the device
        knows that).

        Those rows start at ON_DEVICE; the second is None if there are none.
        """
        ...

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        """Returns the drafts that the host proposes for the rows of a step."""
        ...

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        """Takes the result of a step before it is applied: row r got `counts[r]` tokens. counts, alive: [R]."""
        ...


class OneToken:
    """Each row gets exactly one token in each step (without drafts)."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table

    def must_settle(self, rows: DecodingRows) -> bool:
        return False

    def grow(self, rows: DecodingRows) -> Grown:
        slots, ones = rows.slots, rows.ones
        after = self._table.high[slots] + ones
        live = after < rows.final_len
        if np.count_nonzero(live) == len(slots):
            # Hand on the very array that came in: columns that depend on the rows are kept by its identity.
            return Grown(slots, ones, after, len(slots))
        slots = slots[live]
        return Grown(slots, ones[: len(slots)], after[live], len(slots))

    def grow_least(self, rows: DecodingRows) -> Grown:
        return self.grow(rows)

    def give_back(self, slots: Slots) -> None:
        """Does nothing: nothing was reserved."""

    def begin(self, grown: Grown) -> tuple[Ints, Bools | None]:
        self._table.high[grown.slots] = grown.after
        return grown.after - grown.lens, None

    def drafts(self, batch: ScheduleBatch) -> DraftColumns | None:
        return None

    def settle(self, batch: ScheduleBatch, counts: Ints, alive: Bools) -> None:
        """Does nothing: the lengths were known."""
