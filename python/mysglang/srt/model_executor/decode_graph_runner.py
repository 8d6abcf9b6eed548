"""DecodeGraphRunner: decode steps captured once for each of some batch sizes, padded and replayed.

    captured for a size: page table writes -> newest tokens -> the size's program, to logits and greedy tokens -> record

A step of R rows runs as the smallest captured size that holds it. Padding rows have the padding slot, length 1 and KV
slot 0, and touch nothing that a request owns. A replay's outputs are good until the next replay, of whatever size.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.graph_buffers import GraphBuffers
from mysglang.srt.model_executor.graph_capture import capture_all
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_program import Programs, StepProgram, StepTensors
from mysglang.srt.platforms.interface import Graph, GraphRecorder, Platform


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay leaves, cut to the step's rows: slots [R] int64, logits [R, vocab], greedy tokens [R] int64, and
    hidden states [R, hidden_size] if these are kept.
    """

    slots: Tensor
    logits: Tensor
    tokens: Tensor
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class Captured:
    """One batch size."""

    graph: Graph
    program: StepProgram
    buffers: GraphBuffers
    metadata: AttentionMetadata
    left: StepTensors


class StepGraphs:
    """The null object: no step is covered, each runs eagerly."""

    nbytes = 0
    """Device memory of the graphs."""

    def covers(self, batch: ModelWorkerBatch) -> bool:
        """Whether `run` can take the step."""
        return False

    def run(self, batch: ModelWorkerBatch) -> Replayed:
        """Queue a step that is covered, its table writes and its recording of greedy tokens included."""
        raise AssertionError("no step is covered")


class DecodeGraphRunner(StepGraphs):
    """Captures on construction."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        programs: Programs,
        tables: DeviceTables,
        platform: Platform,
        *,
        keep_hidden: bool = False,
    ) -> None:
        """`sizes` ascend, and there is at least one. `keep_hidden`: also for steps that want hidden states."""
        self._sizes = sizes
        self._programs = programs
        self._tables = tables
        self._platform = platform
        self._keep_hidden = keep_hidden
        captures = capture_all(sizes, self._capture, platform, "batch sizes")
        self._captured, self.nbytes = captures.by_size, captures.nbytes

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if not batch.mode.is_decode or len(batch.slots) > self._sizes[-1]:
            return False
        captured = self._captured_for(len(batch.slots))
        if batch.hidden is not None and captured.left.hidden is None:
            return False
        return captured.program.backend.covers(batch.seq_lens)

    def run(self, batch: ModelWorkerBatch) -> Replayed:
        rows = len(batch.slots)
        captured = self._captured_for(rows)
        seq_lens = captured.buffers.fill(batch)
        captured.program.backend.plan_replay(captured.metadata, seq_lens)
        captured.graph.replay()
        left = captured.left
        hidden = None if left.hidden is None else left.hidden[:rows]
        return Replayed(captured.buffers.slots[:rows], left.logits[:rows], left.tokens[:rows], hidden)

    def _captured_for(self, rows: int) -> Captured:
        return self._captured[self._sizes[bisect.bisect_left(self._sizes, rows)]]

    def _capture(self, size: int, recorder: GraphRecorder) -> Captured:
        program = self._programs.for_size(size)
        buffers = GraphBuffers(size, self._tables, self._platform, program.backend)
        host = padding_decode(size, self._tables.padding_slot)
        buffers.fill(host)
        batch = buffers.forward_batch(host)
        batch.attn_metadata = program.backend.open_graph(batch)
        graph, left = recorder.record(self._step(program, batch, buffers))
        return Captured(graph, program, buffers, batch.attn_metadata, left)

    def _step(self, program: StepProgram, batch: ForwardBatch, buffers: GraphBuffers) -> Callable[[], StepTensors]:
        tables = self._tables

        def step() -> StepTensors:
            tables.write(buffers.table_writes)
            resolved = replace(batch, input_ids=tables.resolve(batch.input_ids, batch.slots))
            left = program.run(resolved)
            tables.record(batch.slots, left.tokens)
            # What is not needed is memory for the next size.
            return left if self._keep_hidden else left._replace(hidden=None)

        return step
