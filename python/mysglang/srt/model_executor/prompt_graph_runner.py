"""PromptGraphRunner: short steps with new tokens, captured for each of some numbers of tokens, padded and replayed.

    captured: page table writes -> newest tokens -> page lists -> layers -> hidden state of each row's last token

A prompt of a hundred tokens takes the device a millisecond and the host ten, kernel by kernel; replayed, it takes the
host less than the device. Long steps keep the device busy anyway and run eagerly. Padding tokens are one more row, with
the padding slot, which writes KV slot 0 and attends to itself; other padding rows are empty.
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

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.graph import PromptCapture
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.prompt_buffers import PromptBuffers, rows_of
from mysglang.srt.model_executor.step_columns import wants_prompt_logprobs
from mysglang.srt.models.interfaces import CausalModel
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.utils.hardware import GIB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """One number of tokens."""

    graph: torch.cuda.CUDAGraph
    buffers: PromptBuffers
    metadata: AttentionMetadata
    hidden: Tensor


class PromptGraphs:
    """The null object: no step is covered, each runs eagerly."""

    nbytes = 0
    """Device memory of the graphs."""

    def covers(self, batch: ModelWorkerBatch) -> bool:
        """Whether `run` can take the step."""
        return False

    def run(self, batch: ModelWorkerBatch) -> Tensor:
        """Queue a step that is covered, its table writes included.

        Returns [R, hidden_size] of the last token of each row, good until the next replay.
        """
        raise AssertionError("no step is covered")


class PromptGraphRunner(PromptGraphs):
    """Captures on construction."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        model: CausalModel,
        backend: AttentionBackend,
        attention: PromptCapture,
        tables: DeviceTables,
        platform: Platform,
    ) -> None:
        """`sizes`, in tokens, ascend, and there is at least one. `attention` is the backend's."""
        self._sizes = sizes
        self._model = model
        self._backend = backend
        self._attention = attention
        self._tables = tables
        self._platform = platform
        self._captured: dict[int, CapturedPrompt] = {}
        self._capture_all()

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if batch.mode.is_decode or batch.num_tokens > self._sizes[-1] or wants_prompt_logprobs(batch):
            return False
        # One row is kept for the padding tokens.
        return batch.num_rows < rows_of(self._size_for(batch)) and self._attention.covers(batch.seq_lens)

    def run(self, batch: ModelWorkerBatch) -> Tensor:
        captured = self._captured[self._size_for(batch)]
        seq_lens, extend_lens = captured.buffers.fill(batch)
        self._attention.plan_replay(captured.metadata, seq_lens, extend_lens)
        captured.graph.replay()
        return captured.hidden[: batch.num_rows]

    def _size_for(self, batch: ModelWorkerBatch) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, batch.num_tokens)]

    def _capture_all(self) -> None:
        began, before = time.perf_counter(), self._platform.memory().free
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.inference_mode():
            for size in tqdm(sorted(self._sizes, reverse=True), desc="Capturing prompt lengths"):
                self._captured[size] = self._capture(size, pool)
        torch.cuda.current_stream().wait_stream(stream)
        self.nbytes = before - self._platform.memory().free
        seconds = time.perf_counter() - began
        logger.info("Captured %d prompt lengths in %.1f s, %.2f GiB", len(self._sizes), seconds, self.nbytes / GIB)

    def _capture(self, size: int, pool: Any) -> CapturedPrompt:
        """Run the step as it is, so that kernels are compiled and plans made, then once more into a graph."""
        buffers = PromptBuffers(size, self._tables, self._platform)
        seq_lens, extend_lens = buffers.fill(padding_prompt(size, self._tables.padding_slot))
        batch = buffers.forward_batch(seq_lens, extend_lens, self._backend)
        batch.attn_metadata = self._attention.open_graph(batch)
        step = self._step(batch, buffers)
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        try:
            hidden = step()
        finally:
            graph.capture_end()
        return CapturedPrompt(graph, buffers, batch.attn_metadata, hidden)

    def _step(self, batch: ForwardBatch, buffers: PromptBuffers) -> Callable[[], Tensor]:
        def step() -> Tensor:
            self._tables.write_pages(*buffers.table_writes)
            resolved = replace(batch, input_ids=self._tables.resolve(batch.input_ids, buffers.token_slots))
            self._attention.begin_step(resolved)
            return self._model.forward(resolved)

        return step
