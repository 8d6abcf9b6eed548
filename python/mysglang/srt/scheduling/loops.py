"""Loops: how far planning runs ahead of results. A loop owns its lanes; everything else is the scheduler's."""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.scheduling.batch import Asked, ScheduleBatch
from mysglang.srt.scheduling.lane import Lane


class Launched:
    """A step that the worker has taken."""

    __slots__ = ("asked", "at", "batch", "result")

    def __init__(self, batch: ScheduleBatch, asked: Asked, result: BatchResult, at: float) -> None:
        """`at`: when, in seconds."""
        self.batch = batch
        self.asked = asked
        self.result = result
        self.at = at


class Stepped(Protocol):
    """What a loop drives (managers/scheduler.py)."""

    def recv_requests(self, lane: Lane) -> None: ...

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None: ...

    def run_batch(self, batch: ScheduleBatch) -> Launched: ...

    def choose_tokens(self, launched: Launched) -> None: ...

    def process_batch_result(self, launched: Launched, lane: Lane) -> None: ...

    def on_idle(self, lane: Lane) -> None: ...


class Loop(Protocol):
    """Runs a scheduler, one turn after another."""

    def step(self) -> None:
        """One turn."""
        ...


class SyncLoop:
    """Plan, run, take the result. One lane, nothing in flight between turns. (SGLang's `event_loop_normal`.)"""

    def __init__(self, scheduler: Stepped) -> None:
        self._scheduler = scheduler
        self.lane = Lane()

    def step(self) -> None:
        scheduler, lane = self._scheduler, self.lane
        scheduler.recv_requests(lane)
        batch = scheduler.get_next_batch_to_run(lane)
        if batch is None:
            scheduler.on_idle(lane)
            return
        launched = scheduler.run_batch(batch)
        scheduler.choose_tokens(launched)
        scheduler.process_batch_result(launched, lane)


class OverlapLoop:
    """Launch a step, then read the one before while the device works. One lane, one step in flight.

    (SGLang's `event_loop_overlap`.)
    """

    def __init__(self, scheduler: Stepped) -> None:
        self._scheduler = scheduler
        self._pending: Launched | None = None
        self.lane = Lane()

    def step(self) -> None:
        scheduler, lane = self._scheduler, self.lane
        scheduler.recv_requests(lane)
        batch = scheduler.get_next_batch_to_run(lane)
        launched = scheduler.run_batch(batch) if batch is not None else None
        if self._pending is not None:
            scheduler.process_batch_result(self._pending, lane)
        elif launched is None:
            scheduler.on_idle(lane)
        if launched is not None:
            scheduler.choose_tokens(launched)
        self._pending = launched
