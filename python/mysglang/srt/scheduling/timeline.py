"""Timeline: when a request stood where, noted for whoever traces requests. Nothing is planned by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.messages.outputs import RequestTimes
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable


class Timeline(Protocol):
    """Hears of steps that were applied and requests that ended; knows from the requests when they came and started."""

    def applied(self, batch: ScheduleBatch) -> None:
        """The results of a step are in the table."""
        ...

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        """What is known of requests that ended just now, by their row in a message, the first of them `first_row`."""
        ...


class NoTimeline:
    """Nobody asks."""

    def applied(self, batch: ScheduleBatch) -> None:
        pass

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        return {}


class RequestTimeline:
    """Looks at the rows of prompts, so that decode steps cost nothing."""

    def __init__(self, table: RequestTable, clock: Callable[[], float] = time.perf_counter) -> None:
        self._table = table
        self._clock = clock

    def applied(self, batch: ScheduleBatch) -> None:
        if not (prompts := batch.num_prompts):
            return
        now = self._clock()
        slots = batch.slots[:prompts]
        alive = self._table.life[slots] == batch.lives[:prompts]
        for slot in slots[np.flatnonzero(batch.yields[:prompts] & alive)].tolist():
            req = self._table.req(slot)
            if not req.first_token_at:
                req.first_token_at = now

    def of(self, ended: Sequence[Req], *, first_row: int) -> dict[int, RequestTimes]:
        now = self._clock()
        return {
            row: RequestTimes(req.arrived_at, req.started_at, req.first_token_at or self._answered(req, now), now)
            for row, req in enumerate(ended, start=first_row)
        }

    @staticmethod
    def _answered(req: Req, now: float) -> float:
        """Of a request that ended in the step of its first token, before that was noted; 0 if it has none."""
        return now if len(req.output_ids) or req.vector is not None else 0.0
