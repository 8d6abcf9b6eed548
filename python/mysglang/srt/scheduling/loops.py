"""Loops: how far planning runs ahead of results. Everything else is the scheduler's.

What a step changes, it changes at three places that stand here: positions and memory when it is planned, what the
device writes when it is launched, tokens and ends when its result is applied.
"""

from __future__ import annotations

from typing import Protocol

from mysglang.srt.scheduling.batch import Launched, ScheduleBatch
from mysglang.srt.scheduling.lane import Lane, Lanes


class Stepped(Protocol):
    """What a loop drives (managers/scheduler.py)."""

    def recv_requests(self) -> None: ...

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None: ...

    def run_batch(self, batch: ScheduleBatch) -> Launched: ...

    def choose_tokens(self, launched: Launched) -> None: ...

    def process_batch_result(self, launched: Launched, lane: Lane) -> None: ...

    def on_idle(self) -> None: ...


class Loop(Protocol):
    """Runs a scheduler, one turn after another."""

    scheduler: Stepped

    def step(self) -> None:
        """One turn."""
        ...


class SyncLoop:
    """Plan, run, take the result. Nothing is in flight between turns. (SGLang's `event_loop_normal`.)"""

    def __init__(self, scheduler: Stepped, lanes: Lanes) -> None:
        self.scheduler = scheduler
        """What the loop drives. A recorder may stand in its place between two turns."""
        self._lanes = lanes.all

    def step(self) -> None:
        scheduler = self.scheduler
        scheduler.recv_requests()
        idle = True
        for lane in self._lanes:
            batch = scheduler.get_next_batch_to_run(lane)
            if batch is not None:
                idle = False
                launched = scheduler.run_batch(batch)
                scheduler.choose_tokens(launched)
                scheduler.process_batch_result(launched, lane)
        if idle:
            scheduler.on_idle()


class OverlapLoop:
    """Launch a step, then read the one before while the device works. One step of each lane is in flight.

    (SGLang's `event_loop_overlap`.)
    """

    def __init__(self, scheduler: Stepped, lanes: Lanes) -> None:
        self.scheduler = scheduler
        """What the loop drives. A recorder may stand in its place between two turns."""
        self._lanes = lanes.all

    def step(self) -> None:
        scheduler = self.scheduler
        scheduler.recv_requests()
        idle = True
        for lane in self._lanes:
            batch = scheduler.get_next_batch_to_run(lane)
            launched = scheduler.run_batch(batch) if batch is not None else None
            before, lane.pending = lane.pending, launched
            if before is not None:
                idle = False
                scheduler.process_batch_result(before, lane)
            if launched is not None:
                idle = False
                scheduler.choose_tokens(launched)
        if idle:
            scheduler.on_idle()
