"""MixedGraphRunner: short steps of prompts beside decoding rows, captured in some sizes, padded and replayed.

    captured: page table writes -> newest tokens -> page lists -> layers -> hidden state of each row's last token

    tokens  | prompts, padding            | decoding rows, padding |
    rows    | up to MOST_PROMPT_ROWS, one | `room`                 |

Attention is in two parts, as in `layers/attention/mixed.py`, which have fixed places. A decoding row waits for a whole
step, and the host takes three times as long as a decode step to queue one kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.graph import MixedCapture
from mysglang.srt.model_executor.graph_capture import capture_all
from mysglang.srt.model_executor.padding import mixed_padding, padding_prompt
from mysglang.srt.model_executor.programs import CAPTURED_MIXED
from mysglang.srt.model_executor.state_graphs import StateGraph
from mysglang.srt.model_executor.step_buffers import Places
from mysglang.srt.model_executor.step_columns import sampled_columns, wants_all_tokens
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenParts
from mysglang.srt.platforms.interface import Graph, GraphRecorder


@dataclass(frozen=True, slots=True)
class CapturedMixed:
    """The captured graph of one size, with its buffers."""

    graph: Graph
    places: Places
    attention: MixedCapture
    metadata: AttentionMetadata
    states: StateGraph
    hidden: Tensor
    room: int
    """Decoding rows, padding included."""

    @property
    def prompt_rows(self) -> int:
        """Number of rows before the decoding ones, padding included."""
        return self.places.shape.rows - self.room


class MixedGraphRunner:
    """Runs steps by replaying captured graphs (a `programs.Program`). The constructor captures them."""

    name = CAPTURED_MIXED

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        attention: Callable[[int], MixedCapture],
        parts: TokenParts,
        recorder: GraphRecorder,
    ) -> None:
        """`sizes`: pairs of the number of tokens and the largest number of decoding rows among them; not empty.
        `attention` makes the capture for a number of decoding rows.
        """
        self._sizes = sorted(sizes)
        self._rooms = sorted({room for _, room in sizes})
        self.takes = f"prompts beside decoding rows, up to {self._sizes[-1][0]} new tokens together"
        self._attention = attention
        self._model = parts.model
        self._logits = parts.logits
        self._backend = parts.backend
        self._tables = parts.memory.tables
        self._arrivals = parts.memory.pool.arrivals
        self._buffers = parts.buffers
        self._states = parts.states
        self._keeps_states = parts.memory.states is not None
        self._end = parts.end
        self._captured = capture_all(self._sizes, self._capture, recorder, "mixed steps")

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if batch.mode.is_decode or batch.num_tokens > self._sizes[-1][0]:
            return False
        if batch.embeds is not None or batch.high_lens is not None or wants_all_tokens(batch):
            return False
        decoding = decoding_rows(batch)
        found = self._captured_for(batch, decoding)
        if found is None or not found.states.covers(batch, decoding):
            return False
        return found.attention.covers(batch.seq_lens, batch.extend_lens)

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._arrivals.wait_for_all()
        decoding = decoding_rows(batch)
        captured = self._captured_for(batch, decoding)
        assert captured is not None, "the step is covered"
        padded = self._padded(batch, decoding, captured)
        columns = self._buffers.fill(padded, captured.places, captured.attention, captured.states)
        self._states.before_replay(batch)
        captured.attention.plan_replay(captured.metadata, columns["seq_lens"], columns["extend_lens"])
        captured.graph.replay()
        # The device is at work from here on.
        inputs = self._end.stage(batch, sampled_columns(batch))
        up, prompts, first = inputs.tokens, batch.num_rows - decoding, captured.prompt_rows
        hidden = torch.cat((captured.hidden[:prompts], captured.hidden[first : first + decoding]))
        logits = self._logits.next_token_logits(hidden, up["logits_rows"])
        result = self._end.choose(batch, inputs, up["sample_slots"], ForwardOutput(logits))
        result.on_graph = True
        return result

    def _captured_for(self, batch: ModelWorkerBatch, decoding: int) -> CapturedMixed | None:
        """Returns the smallest size that holds the step, with the smallest room that holds its decoding rows. None if
        there is none: a step with a larger room would compute more padding than it saves.
        """
        prompts, tokens = batch.num_rows - decoding, batch.num_tokens - decoding
        room = next((room for room in self._rooms if room >= decoding), None)
        if not decoding or not prompts or room is None:
            return None
        fitting = (size for size in self._sizes if size[1] == room and tokens <= size[0] - room)
        captured = next((self._captured[size] for size in fitting), None)
        # One row is kept for the padding tokens.
        return captured if captured is not None and prompts < captured.prompt_rows else None

    def _padded(self, batch: ModelWorkerBatch, decoding: int, captured: CapturedMixed) -> ModelWorkerBatch:
        shape = captured.places.shape
        return self._padding(batch, decoding, tokens=shape.tokens, rows=shape.rows, room=captured.room)

    def _padding(
        self, batch: ModelWorkerBatch, decoding: int, *, tokens: int, rows: int, room: int
    ) -> ModelWorkerBatch:
        return mixed_padding(batch, decoding, tokens=tokens, rows=rows, room=room, slot=self._tables.padding_slot)

    def _capture(self, size: tuple[int, int], recorder: GraphRecorder) -> CapturedMixed:
        tokens, room = size
        buffers, tables = self._buffers, self._tables
        attention, states = self._attention(room), self._states.prompts(tokens, room)
        places = buffers.mixed(tokens, room, {**attention.columns(), **states.columns()})
        slot, spaces = tables.padding_slot, tables.num_spaces
        prompt = padding_prompt(tokens - room, slot, spaces=spaces, states=self._keeps_states)
        host = self._padding(prompt, 0, tokens=tokens, rows=places.shape.rows, room=room)
        buffers.fill(host, places, attention, states)
        batch = buffers.forward_batch(host, places, self._backend)
        batch.states = states.captured(places.extra)
        batch.attn_metadata = attention.open_graph(batch)
        graph, hidden = recorder.record(self._step(batch, places, attention))
        return CapturedMixed(graph, places, attention, batch.attn_metadata, states, hidden, room)

    def _step(self, batch: ForwardBatch, places: Places, attention: MixedCapture) -> Callable[[], Tensor]:
        def step() -> Tensor:
            begun = self._buffers.begin(batch, places)
            attention.begin_step(begun)
            return self._model.forward(begun)

        return step


def decoding_rows(batch: ModelWorkerBatch) -> int:
    """Returns how many rows at the end decode: their one token is known to the device alone. A chunk of one token is
    none.
    """
    single = batch.extend_lens == 1
    newest = batch.input_ids[np.cumsum(batch.extend_lens) - 1] < 0
    others = np.flatnonzero(~(single & newest))
    return batch.num_rows - int(others[-1]) - 1 if len(others) else batch.num_rows
