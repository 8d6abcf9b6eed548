"""PromptGraphRunner: short steps with new tokens, captured for each of some numbers of tokens, padded and replayed.

    captured: page table writes -> newest tokens -> page lists -> layers -> hidden state of each row's last token

A prompt of a hundred tokens takes the device a millisecond and the host ten, kernel by kernel; replayed, it takes the
host less than the device. Long steps keep the device busy anyway and run eagerly. Padding tokens are one more row, with
the padding slot, which writes KV slot 0 and attends to itself; other padding rows are empty.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.graph import PromptCapture
from mysglang.srt.model_executor.graph_capture import capture_all
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.programs import CAPTURED_PROMPTS
from mysglang.srt.model_executor.state_graphs import StateGraph
from mysglang.srt.model_executor.step_buffers import Places, StepArrays
from mysglang.srt.model_executor.step_columns import sampled_columns, wants_all_tokens
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenParts
from mysglang.srt.platforms.interface import Graph, GraphRecorder


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """The captured graph of one number of tokens, with its buffers."""

    graph: Graph
    places: Places
    metadata: AttentionMetadata
    states: StateGraph
    hidden: Tensor


class PromptGraphRunner:
    """Runs prefill steps by replaying captured graphs (a `programs.Program`). The constructor captures them."""

    name = CAPTURED_PROMPTS

    def __init__(
        self,
        sizes: tuple[int, ...],
        attention: PromptCapture,
        parts: TokenParts,
        recorder: GraphRecorder,
    ) -> None:
        """`sizes`: numbers of tokens, ascending, not empty. `attention`: the backend's capture of prompts."""
        self.takes = f"other steps of up to {sizes[-1]} new tokens"
        self._sizes = sizes
        self._model = parts.model
        self._logits = parts.logits
        self._backend = parts.backend
        self._attention = attention
        self._tables = parts.memory.tables
        self._arrivals = parts.memory.pool.arrivals
        self._buffers = parts.buffers
        self._states = parts.states
        self._keeps_states = parts.memory.states is not None
        self._end = parts.end
        self._captured = capture_all(sizes, self._capture, recorder, "prompt lengths")

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if batch.mode.is_decode or batch.num_tokens > self._sizes[-1]:
            return False
        if batch.embeds is not None or wants_all_tokens(batch):
            return False
        captured = self._captured[self._size_for(batch)]
        # One row is kept for the padding tokens.
        if batch.num_rows >= captured.places.shape.rows or not captured.states.covers(batch):
            return False
        return self._attention.covers(batch.seq_lens, batch.extend_lens)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._arrivals.wait_for_all()
        captured = self._captured[self._size_for(batch)]
        columns = self._buffers.fill(batch, captured.places, captured.states)
        self._states.before_replay(batch)
        self._attention.plan_replay(captured.metadata, columns["seq_lens"], columns["extend_lens"])
        captured.graph.replay()
        # The device is at work from here on.
        inputs = self._end.stage_yields(batch, sampled_columns(batch))
        up, logits = inputs.tokens, None
        if batch.yields.any():
            logits = self._logits.next_token_logits(captured.hidden[: batch.num_rows], up["logits_rows"])
        result = self._end.choose(batch, inputs, up["sample_slots"], ForwardOutput(logits))
        result.on_graph = True
        return result

    def _size_for(self, batch: ModelWorkerBatch) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, batch.num_tokens)]

    def _capture(self, size: int, recorder: GraphRecorder) -> CapturedPrompt:
        buffers, tables, states = self._buffers, self._tables, self._states.prompts(size)
        places = buffers.prompts(size, states.columns())
        host = padding_prompt(size, tables.padding_slot, spaces=tables.num_spaces, states=self._keeps_states)
        columns = buffers.fill(host, places, states)
        batch = buffers.forward_batch(padded(host, columns), places, self._backend)
        batch.states = states.captured(places.extra)
        batch.attn_metadata = self._attention.open_graph(batch)
        graph, hidden = recorder.record(self._step(batch, places))
        return CapturedPrompt(graph, places, batch.attn_metadata, states, hidden)

    def _step(self, batch: ForwardBatch, places: Places) -> Callable[[], Tensor]:
        def step() -> Tensor:
            begun = self._buffers.begin(batch, places)
            self._attention.begin_step(begun)
            return self._model.forward(begun)

        return step


def padded(batch: ModelWorkerBatch, columns: StepArrays) -> ModelWorkerBatch:
    """Returns the batch with padding rows added."""
    lens = columns["extend_lens"].copy()
    return replace(
        batch,
        slots=columns["slots"].copy(),
        seq_lens=columns["seq_lens"].copy(),
        extend_lens=lens,
        yields=np.zeros(len(lens), dtype=np.bool_),
    )
