"""DecodePlanner: the next token of everybody; retract the youngest when memory is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Bools, Ints, Longs, Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.outputs import Abort, FinishReason
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.lane import Lane, Lanes
from mysglang.srt.scheduling.new_token_ratio import NewTokenRatio
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.retraction import Retraction

OUT_OF_MEMORY = Abort(
    "Out of memory: the KV cache cannot hold this request. Raise --mem-fraction-static or --max-total-tokens.",
    status=500,
    kind="InternalServerError",
)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """What does not change while the same rows decode."""

    slots: Slots
    lives: Longs
    final_len: Ints
    ones: Ints
    yields: Bools


class DecodePlanner:
    """Plans decode steps. `tokens_per_step` slots are reserved for each row, as many as a worker may commit."""

    def __init__(
        self,
        table: RequestTable,
        kv: KvManager,
        lanes: Lanes,
        ratio: NewTokenRatio,
        retraction: Retraction,
        *,
        tokens_per_step: int,
        end: Callable[[int, FinishReason], Req],
    ) -> None:
        self._table = table
        self._kv = kv
        self._lanes = lanes
        self._ratio = ratio
        self._retraction = retraction
        self._tokens_per_step = tokens_per_step
        self._end = end
        self._rows: DecodeRows | None = None
        self.failed: list[Req] = []
        """Requests that had to be ended for want of memory; whoever plans answers them."""

    def plan(self, lane: Lane) -> ScheduleBatch | None:
        """The next decode step for `lane`, or None if nobody in it has a token to come."""
        slots, after = self._live(lane)
        if len(slots) and not self._reserve(slots, after):
            if lane.pending is not None:
                # Its result may end somebody, who gives memory back; nobody is retracted before that is known.
                lane.short = True
                return None
            slots, after = self._make_room(lane)
        if not len(slots):
            return None
        self._ratio.after_decode()
        rows = self._rows_of(slots)
        starts = after - rows.ones
        self._table.planned[slots] = after
        return ScheduleBatch(
            mode=ForwardMode.DECODE,
            slots=slots,
            lives=rows.lives,
            starts=starts,
            lens=rows.ones,
            yields=rows.yields,
            new_tokens=len(slots),
        )

    def _live(self, lane: Lane) -> tuple[Slots, Ints]:
        """The rows that have a token to come, and their tokens with KV entries after the next step.

        Those that are sure to end by length only wait for their result. While there are none the slots are the lane's
        own array, by which others know that nothing changed.
        """
        slots = lane.slots
        rows = self._rows_of(slots)
        after = self._table.planned[slots] + rows.ones
        live = after < rows.final_len
        return (slots, after) if np.count_nonzero(live) == len(slots) else (slots[live], after[live])

    def _rows_of(self, slots: Slots) -> DecodeRows:
        """A slot of a lane begins another life only after it left the lane, which then has another array."""
        if self._rows is None or self._rows.slots is not slots:
            ones = np.ones(len(slots), dtype=np.int32)
            table = self._table
            self._rows = DecodeRows(slots, table.life[slots], table.final_len[slots], ones, ones.astype(np.bool_))
        return self._rows

    def _reserve(self, slots: Slots, after: Ints) -> bool:
        more = self._tokens_per_step - 1
        return self._kv.extend_rows(slots, after + more if more else after)

    def _make_room(self, lane: Lane) -> tuple[Slots, Ints]:
        """Retract until the rest fits; rows as `_live` gives them."""
        slots, after = self._live(lane)
        while len(slots) and not self._reserve(slots, after):
            if self._retraction.retract_one() is None:
                # The last one, alone with all the memory, and still it does not fit.
                self.failed.append(self._end(int(slots[0]), OUT_OF_MEMORY))
            slots, after = self._live(lane)
        if len(slots):
            table = self._table
            generated = int((table.known[slots] - table.prompt_len[slots]).sum())
            max_new = int((table.final_len[slots] - table.prompt_len[slots]).sum())
            self._ratio.after_retraction(generated, max_new, len(slots))
        return slots, after
