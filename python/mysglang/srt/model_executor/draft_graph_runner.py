"""DraftGraphRunner: steps that try drafts, captured for each of a few numbers of rows, then padded and replayed.

    captured: page table writes -> places -> drafts of the device -> layers -> greedy tokens -> which drafts count

    row 0    newest  d1  d2  d3  d4        each row has room for the most tokens of a step
    row 1    newest  --  --  --  --        what fills a row up writes the null page, and its results are not read
    padding  --      --  --  --  --

The host says how long rows may be at most, and nothing in the graph depends on that. If some rows do not take their
most likely tokens, the tokens are chosen again, behind the replay, from the logits that it leaves.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import TokenPlaces
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ON_DEVICE, ForwardMode, ModelWorkerBatch
from mysglang.srt.kernels.sampling import greedy_tokens
from mysglang.srt.layers.attention.graph import GraphColumns
from mysglang.srt.model_executor.feature_stager import LateLogits
from mysglang.srt.model_executor.graph_capture import capture_all
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.late_rows import LateRows, Room, has_drafts, logits_columns, token_columns
from mysglang.srt.model_executor.padding import padding_room
from mysglang.srt.model_executor.programs import CAPTURED_VERIFICATION, Drafter, RoomyStep
from mysglang.srt.model_executor.step_buffers import Places
from mysglang.srt.model_executor.step_inputs import is_plain
from mysglang.srt.model_executor.token_end import ForwardOutput, TokenParts
from mysglang.srt.platforms.interface import Graph, GraphRecorder
from mysglang.srt.platforms.upload import Uploader

FREE_TOKENS = 256
"""Tokens of a step up to which reading the weights takes longer than multiplying with them on an H200 (990 TFLOP/s of
bfloat16 over 4.8 TB/s), so that what fills rows up costs little.
"""


class DraftTensors(NamedTuple):
    """Results of a replay of T tokens in R rows."""

    logits: Tensor
    """[T, vocab]"""
    tokens: Tensor
    """[T] int64 the greedy ones."""
    counts: Tensor
    """[R] int64 how many of the greedy ones count."""
    positions: Tensor
    """[T] int64"""
    drafts: Tensor
    """[T] int64"""


@dataclass(frozen=True, slots=True)
class CapturedDrafts:
    """The captured graph of one number of rows, with its buffers."""

    graph: Graph
    room: Room
    places: Places
    left: DraftTensors


class DraftGraphRunner:
    """Runs steps that try drafts by replaying captured graphs (a `programs.Program`). The constructor captures them."""

    name = CAPTURED_VERIFICATION

    def __init__(
        self,
        sizes: Sequence[int],
        hidden: HiddenStates,
        parts: TokenParts,
        rows: LateRows,
        drafter: Drafter,
        uploader: Uploader,
        recorder: GraphRecorder,
    ) -> None:
        """`sizes`: ascending numbers of rows, at least one. `hidden` attends with a backend that takes lengths from the
        device.
        """
        self._sizes = sizes
        self.takes = f"steps of up to {sizes[-1]} rows that try drafts, without prompts"
        self._hidden = hidden
        self._logits = parts.logits
        self._tables = parts.memory.tables
        self._arrivals = parts.memory.pool.arrivals
        self._page_size = parts.memory.pool.page_size
        self._buffers = parts.buffers
        self._end = parts.end
        self._rows = rows
        self._drafter = drafter
        self._uploader = uploader
        self._planned = hidden.late_columns(rows.width, "served_")
        self._sources: Sequence[GraphColumns] = (self._planned, *drafter.columns)
        self._kept: Tensor | None = None
        self._captured = capture_all(sizes, self._capture, recorder, "batch sizes with drafts")

    def covers(self, batch: ModelWorkerBatch) -> bool:
        if not has_drafts(batch) or batch.num_rows > self._sizes[-1] or batch.hidden is not None:
            return False
        first = np.cumsum(batch.extend_lens) - batch.extend_lens
        decoding = bool((batch.input_ids[first] == ON_DEVICE).all() and batch.yields.all())
        if not decoding or int(batch.extend_lens.max()) > self._rows.width or not self._drafter.captures(batch):
            return False
        # In a large step, most of which would be filling, the tokens alone are computed in less time.
        tokens = self._size_for(batch) * self._rows.width
        return tokens <= FREE_TOKENS or 2 * batch.num_tokens >= tokens

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        self._arrivals.wait_for_all()
        captured = self._captured[self._size_for(batch)]
        room, left = captured.room, captured.left
        columns = token_columns(batch, self._rows.width, room, self._tables.padding_slot)
        self._buffers.fill_drafts(batch, columns, captured.places, self._sources)
        captured.graph.replay()
        # The device is at work from here on.
        step = replace(batch, mode=ForwardMode.EXTEND, high_lens=batch.most_lens, logits_per_row=batch.extend_lens)
        if is_plain(batch) and not batch.waits_for_mask:
            # All that rows have room for goes to the host, where the counts say what of it is tokens.
            full = replace(step, logits_per_row=np.full_like(batch.extend_lens, room.width))
            tokens = left.tokens[: batch.num_rows * room.width]
            inputs = self._end.stage(full, {})
            result = self._end.chosen(full, inputs, tokens, None, left.counts[: batch.num_rows])
        else:
            found = logits_columns(batch, batch.extend_lens, room)
            inputs = self._end.stage(step, found, LateLogits(left.positions, found["with_logits"].astype(np.int64)))
            up = inputs.tokens
            commit = partial(self._rows.commit, up, left.positions, left.drafts)
            output = ForwardOutput(left.logits.index_select(0, up["with_logits"]))
            result = self._end.choose_and(commit, step, inputs, output)
        result.on_graph = True
        return result

    def _size_for(self, batch: ModelWorkerBatch) -> int:
        return self._sizes[bisect.bisect_left(self._sizes, batch.num_rows)]

    def _capture(self, size: int, recorder: GraphRecorder) -> CapturedDrafts:
        room, tables = Room(size, self._rows.width), self._tables
        host = padding_room(size, room.width, tables.padding_slot, spaces=tables.num_spaces)
        columns = token_columns(host, room.width, room, tables.padding_slot)
        places = self._buffers.drafts(columns, size, room.width, self._page_size, self._sources)
        self._buffers.fill_drafts(host, columns, places, self._sources)
        graph, left = recorder.record(self._step(host, room, places))
        return CapturedDrafts(graph, room, places, left)

    def _keep(self, logits: Tensor) -> Tensor:
        """Returns a copy of the logits in memory that all sizes share: the largest is captured first."""
        if self._kept is None:
            self._kept = torch.empty_like(logits)
        return self._kept[: len(logits)].copy_(logits)

    def _step(self, host: ModelWorkerBatch, room: Room, places: Places) -> Callable[[], DraftTensors]:
        up = places.views
        all_logits = self._uploader.upload(logits_columns(host, host.extend_lens, room)) | {"yielding": up["slots"]}
        step = RoomyStep(host, room.rows, room.width, up["slots"], up["extend_lens"], up["known"], up)
        planned = self._planned.views(up)

        def run() -> DraftTensors:
            self._tables.write(up)
            placed = self._rows.place(up)
            at = TokenPlaces(placed.ids, placed.positions, placed.locs, placed.seq_lens)
            drafts = self._drafter.propose_captured(step, at, placed.drafts)
            at = replace(at, ids=torch.where(drafts >= 0, drafts, at.ids))
            lens = up["extend_lens"]
            hidden = self._hidden.at_places(host, at, up["slots"], lens, planned, row_room=room.width)
            logits = self._logits.next_token_logits(hidden, None)
            tokens = greedy_tokens(logits)
            counts = self._rows.commit(all_logits, at.positions, drafts, tokens)
            return DraftTensors(self._keep(logits), tokens, counts, at.positions, drafts)

        return run
