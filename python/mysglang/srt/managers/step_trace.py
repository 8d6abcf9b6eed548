"""StepTrace: what the host does in each step of a scheduler, as a trace for Perfetto and chrome://tracing.

    track "host"       receive | plan | launch | wait | apply ( send ) | mask | idle
    track "in flight"  step 1 ───────────────▶
                                step 2 ───────────────▶
    counters           running, waiting, KV tokens in use

While nothing is recorded, none of this is there: a recording puts `TracedSteps` between the loop and its scheduler, and
takes it out again. Times are of the host; torch's profiler records the work of the device.

Format: "Trace Event Format" of the Chromium project, JSON object form. Times in microseconds.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from mysglang.srt.managers.scheduler import Stepped
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToDetokenizer
from mysglang.srt.scheduling.batch import Launched, ScheduleBatch
from mysglang.srt.scheduling.lane import Lane

HOST, FLIGHT = 1, 2
"""Numbers of the tracks."""

Figures: TypeAlias = Callable[[], Mapping[str, Mapping[str, int]]]
"""Counters beside the steps: title -> name -> value now."""

MAX_EVENTS = 400_000
"""Events that are kept, some 40,000 steps; later ones are counted and dropped."""

SHORTEST_US = 1.0
"""A phase that was shorter did nothing, and is left out."""


class StepTrace:
    """The events of one recording."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun = clock()
        self._process = os.getpid()
        self.events: list[dict[str, Any]] = []
        self.dropped = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """Records the block as a phase of the host; the entries of the dict are shown with it."""
        begun, args = self._now(), dict[str, Any]()
        try:
            yield args
        finally:
            took = self._now() - begun
            if took >= SHORTEST_US or args:
                self._add({"name": name, "ph": "X", "ts": begun, "dur": took, "tid": HOST, "args": args})

    def launched(self, number: int, args: Mapping[str, Any]) -> None:
        """Records that a step is in flight from now on."""
        self._flight("b", number, args)

    def landed(self, number: int) -> None:
        """Records that the tokens of a step have arrived."""
        self._flight("e", number, {})

    def count(self, name: str, values: Mapping[str, int]) -> None:
        """Records the values that counters of that name have from now on."""
        self._add({"name": name, "ph": "C", "ts": self._now(), "args": dict(values)})

    def write(self, path: Path, title: str) -> None:
        """Writes the trace as gzipped JSON. The file gets its name only when it is complete. Raises OSError."""
        names = [("process_name", 0, title), ("thread_name", HOST, "host"), ("thread_name", FLIGHT, "in flight")]
        heads = [
            {"name": kind, "ph": "M", "pid": self._process, "tid": track, "args": {"name": name}}
            for kind, track, name in names
        ]
        whole = {"traceEvents": [*heads, *self.events], "displayTimeUnit": "ms", "dropped_events": self.dropped}
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(gzip.compress(orjson.dumps(whole), compresslevel=1))
        part.replace(path)

    def _flight(self, kind: str, number: int, args: Mapping[str, Any]) -> None:
        # Steps overlap, so each is an event of its own on the track, identified by its id.
        event = {"name": f"step {number}", "cat": "step", "ph": kind, "id": number, "ts": self._now(), "tid": FLIGHT}
        self._add({**event, "args": dict(args)})

    def _add(self, event: dict[str, Any]) -> None:
        if len(self.events) >= MAX_EVENTS:
            self.dropped += 1
            return
        self.events.append({**event, "pid": self._process})

    def _now(self) -> float:
        return (self._clock() - self._begun) * 1e6


class WatchedSteps:
    """Wraps a scheduler as its loop sees it, and passes all calls on. Subclasses override the calls that they watch."""

    def __init__(self, inner: Stepped) -> None:
        self.inner = inner

    def recv_requests(self) -> None:
        self.inner.recv_requests()

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None:
        return self.inner.get_next_batch_to_run(lane)

    def run_batch(self, batch: ScheduleBatch) -> Launched:
        return self.inner.run_batch(batch)

    def choose_tokens(self, launched: Launched) -> None:
        self.inner.choose_tokens(launched)

    def process_batch_result(self, launched: Launched, lane: Lane) -> None:
        self.inner.process_batch_result(launched, lane)

    def on_idle(self) -> None:
        self.inner.on_idle()


class TracedSteps(WatchedSteps):
    """Records every phase of every step. `figures` are read once a step, outside of all phases."""

    def __init__(self, inner: Stepped, trace: StepTrace, figures: Figures) -> None:
        super().__init__(inner)
        self._trace = trace
        self._figures = figures
        self._numbers: dict[int, int] = {}
        """Steps in flight: identity -> number."""
        self._count = 0

    def recv_requests(self) -> None:
        with self._trace.phase("receive"):
            self.inner.recv_requests()

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None:
        with self._trace.phase("plan") as args:
            batch = self.inner.get_next_batch_to_run(lane)
            if batch is not None:
                args |= described(batch)
        return batch

    def run_batch(self, batch: ScheduleBatch) -> Launched:
        args = described(batch)
        with self._trace.phase("launch") as shown:
            shown |= args
            launched = self.inner.run_batch(batch)
        self._count += 1
        self._numbers[id(launched)] = self._count
        self._trace.launched(self._count, args)
        return launched

    def choose_tokens(self, launched: Launched) -> None:
        with self._trace.phase("mask"):
            self.inner.choose_tokens(launched)

    def process_batch_result(self, launched: Launched, lane: Lane) -> None:
        with self._trace.phase("wait"):
            launched.result.complete()
        number = self._numbers.pop(id(launched), None)
        if number is not None:  # None: it was launched before the recording began
            self._trace.landed(number)
        with self._trace.phase("apply"):
            self.inner.process_batch_result(launched, lane)
        for name, values in self._figures().items():
            self._trace.count(name, values)

    def on_idle(self) -> None:
        with self._trace.phase("idle"):
            self.inner.on_idle()


class TracedSender:
    """Wraps the sender of messages to the detokenizer, and records a phase for each."""

    def __init__(self, inner: Sender[ToDetokenizer], trace: StepTrace) -> None:
        self.inner = inner
        self._trace = trace

    def send(self, message: ToDetokenizer) -> None:
        with self._trace.phase("send"):
            self.inner.send(message)


def described(batch: ScheduleBatch) -> dict[str, Any]:
    """Returns the figures of a step, as text."""
    return {
        "mode": batch.mode.value,
        "rows": len(batch),
        "prompts": batch.num_prompts,
        "new_tokens": batch.new_tokens,
        "cached_tokens": batch.cached_tokens,
    }
