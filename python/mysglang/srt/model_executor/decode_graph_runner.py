"""DecodeGraphRunner: captures a decode step once for each of a few batch sizes, then pads each batch and replays it.

    captured for a size: page table writes -> newest tokens -> the size's program, to logits and greedy tokens -> record

A step of R rows runs as the smallest captured size that holds it. Padding rows have the padding slot, length 1 and KV
slot 0, so they write nothing that a request owns. The next replay, of any size, overwrites a replay's outputs.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.graph_capture import capture_all
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_buffers import Places
from mysglang.srt.model_executor.step_program import StepProgram, StepTensors
from mysglang.srt.model_executor.token_end import TokenParts
from mysglang.srt.platforms.interface import Graph, GraphRecorder


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """The captured graph of one batch size, with its buffers."""

    graph: Graph
    program: StepProgram
    places: Places
    metadata: AttentionMetadata
    left: StepTensors


class DecodeGraphRunner:
    """Runs decode steps by replaying captured graphs (a `programs.Program`). The constructor captures them."""

    def __init__(
        self,
        name: str,
        programs: Mapping[int, StepProgram],
        parts: TokenParts,
        recorder: GraphRecorder,
        *,
        keep_hidden: bool = False,
    ) -> None:
        """`programs`: maps a number of rows to the program that is captured for it; not empty. `keep_hidden`: True if
        the graphs also serve steps that want hidden states.
        """
        self.name = name
        self._sizes = sorted(programs)
        self.takes = f"decode steps of up to {self._sizes[-1]} rows"
        self._programs = programs
        self._tables = parts.memory.tables
        self._arrivals = parts.memory.pool.arrivals
        self._buffers = parts.buffers
        self._states = parts.states
        self._keeps_states = parts.memory.states is not None
        self._end = parts.end
        self._keep_hidden = keep_hidden
        self._captured = capture_all(self._sizes, self._capture, recorder, f"batch sizes ({name})")

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if not batch.mode.is_decode or len(batch.slots) > self._sizes[-1]:
            return False
        captured = self._captured_for(len(batch.slots))
        if batch.hidden is not None and captured.left.hidden is None:
            return False
        return captured.program.backend.covers(batch.seq_lens) and self._states.covers(batch)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._arrivals.wait_for_all()
        inputs = self._end.stage_captured(batch)
        captured = self._captured_for(len(batch.slots))
        backend = captured.program.backend
        columns = self._buffers.fill(batch, captured.places, backend, self._states)
        self._states.before_replay(batch)
        backend.plan_replay(captured.metadata, columns["seq_lens"])
        captured.graph.replay()
        result = self._end.replayed(batch, inputs, captured.places.views, captured.left)
        result.on_graph = True
        return result

    def _captured_for(self, rows: int) -> CapturedStep:
        return self._captured[self._sizes[bisect.bisect_left(self._sizes, rows)]]

    def _capture(self, size: int, recorder: GraphRecorder) -> CapturedStep:
        program = self._programs[size]
        buffers, backend = self._buffers, program.backend
        places = buffers.decode(size, backend, self._states)
        slot, spaces = self._tables.padding_slot, self._tables.num_spaces
        host = padding_decode(size, slot, spaces=spaces, states=self._keeps_states)
        buffers.fill(host, places, backend, self._states)
        batch = buffers.forward_batch(host, places, backend)
        batch.states = self._states.captured(places.extra)
        batch.attn_metadata = backend.open_graph(batch)
        graph, left = recorder.record(self._step(program, batch, places))
        return CapturedStep(graph, program, places, batch.attn_metadata, left)

    def _step(self, program: StepProgram, batch: ForwardBatch, places: Places) -> Callable[[], StepTensors]:
        def step() -> StepTensors:
            left = program.run(self._buffers.begin(batch, places))
            self._tables.record(batch.slots, left.tokens)
            # Memory that this size does not need is available for the next size.
            return left if self._keep_hidden else left._replace(hidden=None)

        return step
