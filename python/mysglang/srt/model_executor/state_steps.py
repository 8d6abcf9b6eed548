"""StateSteps: the states of a step on the device: what is copied before the layers, and how these go through the rows.

rows with one new token     all at once
rows with several           in spans that end where a checkpoint is copied out, and these in chunks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import StateStep
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import NO_COLUMNS, GraphColumns, HostColumns
from mysglang.srt.mem_cache.kv_pool.states import StatePool
from mysglang.srt.model_executor.state_graphs import NO_STATE_GRAPH, PromptStates, StateGraph
from mysglang.srt.model_executor.state_tables import cut, entries, runs_over, states_of, tables_of
from mysglang.srt.platforms.upload import Uploader

COLUMN = "state_entries"
"""Name of a column of captured decode steps: [R] int64 entry of the pool for each row."""


class StateStager(GraphColumns, Protocol):
    """Prepares the states of steps."""

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        """Queues the copies that come before the layers, after the table writes. Returns None if no layer has
        states.
        """
        ...

    def covers(self, batch: ModelWorkerBatch) -> bool:
        """True if a captured decode step can do all that this step needs for its states."""
        ...

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        """Returns the states of a step to capture, over its columns on the device."""
        ...

    def prompts(self, tokens: int, decoding: int = 0) -> StateGraph:
        """Returns the states of captured steps of `tokens` new tokens, the last of which are `decoding` rows' own."""
        ...

    def before_replay(self, batch: ModelWorkerBatch) -> None:
        """Queues the copies that come before the layers."""
        ...


class NoStateSteps:
    """A null object for a model whose layers keep no state."""

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        return None

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def graph_columns(self, size: int) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        pass

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        return None

    def prompts(self, tokens: int, decoding: int = 0) -> StateGraph:
        return NO_STATE_GRAPH

    def before_replay(self, batch: ModelWorkerBatch) -> None:
        pass


NO_STATE_STEPS = NoStateSteps()


class StateSteps:
    """Implements `StateStager` over the pool of a model."""

    def __init__(self, pool: StatePool, uploader: Uploader) -> None:
        self._pool = pool
        self._uploader = uploader

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        states = states_of(batch)
        single, runs = cut(batch, states, self._pool.num_states)
        columns: dict[str, Longs | Ints] = {"single": entries(states, self._pool.num_states)[single]}
        if runs:
            tables = tables_of(runs, batch.extend_lens)
            columns |= tables
            if len(single):
                columns["single_tokens"] = (np.cumsum(batch.extend_lens, dtype=np.int64) - 1)[single]
        if len(states.targets):
            columns |= {"sources": states.sources, "targets": states.targets}
        up = self._uploader.upload(columns)
        if len(states.targets):
            self._pool.copy(up["sources"], up["targets"])
        several = runs_over(runs, tables, up) if runs else None
        return StateStep(self._pool, several, up["single"], up.get("single_tokens"))

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return len(states_of(batch).checkpoints) == 0

    def graph_columns(self, size: int) -> HostColumns:
        return {COLUMN: np.full(size, self._pool.num_states, dtype=np.int64)}

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        column, rows = columns[COLUMN], batch.num_rows
        column[:rows] = entries(states_of(batch), self._pool.num_states)
        column[rows:] = self._pool.num_states

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        return StateStep(self._pool, None, columns[COLUMN])

    def prompts(self, tokens: int, decoding: int = 0) -> StateGraph:
        return PromptStates(self._pool, tokens, decoding)

    def before_replay(self, batch: ModelWorkerBatch) -> None:
        states = states_of(batch)
        if len(states.targets):
            up = self._uploader.upload({"sources": states.sources, "targets": states.targets})
            self._pool.copy(up["sources"], up["targets"])
