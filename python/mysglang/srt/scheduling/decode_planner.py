"""DecodePlanner: the next token of everybody; retract the youngest when memory is short."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import Slots
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.outputs import Abort, FinishReason
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.growth import DecodingRows, Grown, Growth
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


class DecodePlanner:
    """Plans decode steps. How many tokens a row may get in one is `growth`'s business."""

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
        """Requests that had to be ended for want of memory; whoever plans answers them."""

    def plan(self, lane: Lane) -> ScheduleBatch | None:
        """The next decode step for `lane`, or None if nobody in it has a token to come, or the step in flight comes
        first: then the lane says why.
        """
        growth = self._growth
        rows = self._rows_of(lane.slots)
        if growth.must_settle(rows):
            lane.late = True
            return None
        grown = growth.grow(rows)
        if len(grown) and not self._reserve(grown):
            # Rows do without drafts before anybody waits for memory.
            if grown.new_tokens > len(grown) and self._reserve(least := growth.grow_least(rows)):
                grown = least
            elif lane.pending is not None:
                # Its result may end somebody, who gives memory back; nobody is retracted before that is known.
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
        """A slot of a lane begins another life only after it left the lane, which then has another array."""
        if self._rows is None or self._rows.slots is not slots:
            ones = np.ones(len(slots), dtype=np.int32)
            table = self._table
            self._rows = DecodingRows(slots, table.life[slots], table.final_len[slots], ones, ones.astype(np.bool_))
        return self._rows

    def _reserve(self, grown: Grown) -> bool:
        return self._kv.extend_rows(grown.slots, grown.after, grown.lows)

    def _make_room(self, lane: Lane) -> Grown:
        """Retract until the rest fits."""
        growth = self._growth
        growth.give_back(self._lanes.slots)
        grown = growth.grow_least(self._rows_of(lane.slots))
        while len(grown) and not self._reserve(grown):
            if self._retraction.retract_one() is None:
                # The last one, alone with all the memory, and still it does not fit.
                self.failed.append(self._end(int(grown.slots[0]), OUT_OF_MEMORY))
            grown = growth.grow_least(self._rows_of(lane.slots))
        if len(grown):
            slots, table = grown.slots, self._table
            generated = int((table.known[slots] - table.prompt_len[slots]).sum())
            max_new = int((table.final_len[slots] - table.prompt_len[slots]).sum())
            self._ratio.after_retraction(generated, max_new, len(slots))
        return grown
