"""CudaGraphRunner: decode steps captured once for each of some batch sizes, padded and replayed.

    captured for a size: page table writes -> newest tokens -> the size's program, to logits and greedy tokens -> record

A step of R rows runs as the smallest captured size that holds it. Padding rows have the padding slot, length 1 and KV
slot 0, and touch nothing that a request owns. The sizes share one memory pool, the largest first, so that the others
fit into what it took; a replay's outputs are good until the next replay.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.graph_buffers import GraphBuffers
from mysglang.srt.model_executor.padding import padding_decode
from mysglang.srt.model_executor.step_program import Programs, StepProgram
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay leaves, cut to the step's rows: slots [R] int64, logits [R, vocab], greedy tokens [R] int64."""

    slots: Tensor
    logits: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """One batch size."""

    graph: torch.cuda.CUDAGraph
    program: StepProgram
    buffers: GraphBuffers
    metadata: AttentionMetadata
    logits: Tensor
    tokens: Tensor


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


class CudaGraphRunner(StepGraphs):
    """Captures on construction."""

    def __init__(self, sizes: tuple[int, ...], programs: Programs, tables: DeviceTables, platform: Platform) -> None:
        """`sizes` ascend, and there is at least one."""
        self._sizes = sizes
        self._programs = programs
        self._tables = tables
        self._platform = platform
        self._captured: dict[int, Captured] = {}
        self._capture_all()

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if not batch.mode.is_decode or len(batch.slots) > self._sizes[-1]:
            return False
        return self._captured_for(len(batch.slots)).program.backend.covers(batch.seq_lens)

    def run(self, batch: ModelWorkerBatch) -> Replayed:
        rows = len(batch.slots)
        captured = self._captured_for(rows)
        seq_lens = captured.buffers.fill(batch)
        captured.program.backend.plan_replay(captured.metadata, seq_lens)
        captured.graph.replay()
        return Replayed(captured.buffers.slots[:rows], captured.logits[:rows], captured.tokens[:rows])

    def _captured_for(self, rows: int) -> Captured:
        return self._captured[self._sizes[bisect.bisect_left(self._sizes, rows)]]

    def _capture_all(self) -> None:
        began, before = time.perf_counter(), self._platform.memory().free
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.inference_mode():
            for size in tqdm(sorted(self._sizes, reverse=True), desc="Capturing batch sizes"):
                self._captured[size] = self._capture(size, pool)
        torch.cuda.current_stream().wait_stream(stream)
        self.nbytes = before - self._platform.memory().free
        seconds = time.perf_counter() - began
        logger.info("Captured %d batch sizes in %.1f s, %.2f GiB", len(self._sizes), seconds, self.nbytes / GIB)

    def _capture(self, size: int, pool: Any) -> Captured:
        """Run the step as it is, so that kernels are compiled and plans made, then once more into a graph."""
        program = self._programs.for_size(size)
        buffers = GraphBuffers(size, self._tables, self._platform, program.backend)
        host = padding_decode(size, self._tables.padding_slot)
        buffers.fill(host)
        batch = buffers.forward_batch(host)
        batch.attn_metadata = program.backend.open_graph(batch)
        step = self._step(program, batch, buffers)
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Not through torch.cuda.graph, which collects garbage and empties caches before every capture.
        graph.capture_begin(pool=pool)
        try:
            logits, tokens = step()
        finally:
            graph.capture_end()
        return Captured(graph, program, buffers, batch.attn_metadata, logits, tokens)

    def _step(
        self, program: StepProgram, batch: ForwardBatch, buffers: GraphBuffers
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        tables = self._tables

        def step() -> tuple[Tensor, Tensor]:
            tables.write_pages(buffers.table_entries, buffers.table_pages)
            resolved = replace(batch, input_ids=tables.resolve(batch.input_ids, batch.slots))
            logits, tokens = program.run(resolved)
            tables.record(batch.slots, tokens)
            return logits, tokens

        return step
