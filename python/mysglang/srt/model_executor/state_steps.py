"""StateSteps: the states of a step on the device: what is copied before the layers, and how these go through the rows.

rows with one new token     all at once
rows with several           in spans that end where a checkpoint is copied out, and these in chunks
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import StateRun, StateRuns, StateStep
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch, StateColumns
from mysglang.srt.kernels.linear_attention import CHUNK
from mysglang.srt.layers.attention.graph import NO_COLUMNS, GraphColumns, HostColumns
from mysglang.srt.mem_cache.kv_pool.states import StatePool
from mysglang.srt.model_executor.padding import no_states
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

    def before_replay(self, batch: ModelWorkerBatch) -> None:
        states = states_of(batch)
        if len(states.targets):
            up = self._uploader.upload({"sources": states.sources, "targets": states.targets})
            self._pool.copy(up["sources"], up["targets"])


def states_of(batch: ModelWorkerBatch) -> StateColumns:
    """Returns the states of a step's rows. Raises ValueError if the step has none."""
    states = no_states(0) if batch.states is None else batch.states
    if len(states.slots) != batch.num_rows:
        raise ValueError("the step does not say the state of each row, and layers of the model keep some")
    return states


def entries(states: StateColumns, no_state: int) -> Longs:
    """Returns the entry of the pool for each row, [R]; `no_state`: the entry of rows without a state."""
    found: Longs = np.where(states.slots < 0, no_state, states.slots).astype(np.int64)
    return found


def cut(batch: ModelWorkerBatch, states: StateColumns, no_state: int) -> tuple[Longs, tuple[StateRun, ...]]:
    """Returns the rows with one new token, and the runs of all others. A row whose only token follows a checkpoint that
    it copies out counts as a run.
    """
    copied: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, offset, checkpoint in zip(
        states.rows.tolist(), states.offsets.tolist(), states.checkpoints.tolist(), strict=True
    ):
        copied[row].append((offset, checkpoint))
    several = batch.extend_lens != 1
    several[list(copied)] = True
    at = entries(states, no_state)
    firsts = np.cumsum(batch.extend_lens) - batch.extend_lens

    def runs() -> Iterator[StateRun]:
        for row in several.nonzero()[0].tolist():
            first, begin = int(firsts[row]), 0
            for offset, checkpoint in copied[row]:
                yield StateRun(first + begin, first + offset, int(at[row]), checkpoint)
                begin = offset
            if begin < (end := int(batch.extend_lens[row])):
                yield StateRun(first + begin, first + end, int(at[row]), None)

    return (~several).nonzero()[0], tuple(runs())


def tables_of(runs: Sequence[StateRun], extend_lens: Ints) -> dict[str, Ints]:
    """Returns the columns of `StateRuns`. extend_lens: [R] new tokens of all rows of the step."""
    ends = np.cumsum(extend_lens)
    cuts: list[tuple[int, int, int, int, int]] = []
    rows: list[int] = []
    chunks: list[tuple[int, int]] = []
    first, behind = 0, 0
    for number, (start, end, entry, checkpoint) in enumerate(runs):
        if start >= behind:  # the first span of its row
            first, behind = start, int(ends[np.searchsorted(ends, start, side="right")])
            rows.append(number)
        cuts.append((start, end, first, entry, -1 if checkpoint is None else checkpoint))
        chunks += [(at, number) for at in range(start, end, CHUNK)]
    # The place of each span among those of its row: a stable order by it has all first spans before all second ones.
    turn = np.arange(len(cuts)) - np.repeat(rows, np.diff([*rows, len(cuts)]))
    columns = {
        "cuts": cuts,
        "rows": [*rows, len(cuts)],
        "turns": [cuts[number] for number in np.argsort(turn, kind="stable")],
        "numbers": range(len(cuts) + 1),
        "chunks": chunks,
    }
    return {name: np.array(column, dtype=np.int32) for name, column in columns.items()}


def runs_over(runs: tuple[StateRun, ...], tables: Mapping[str, Ints], columns: Mapping[str, Tensor]) -> StateRuns:
    """Builds the runs of a step on the device. `tables`: from `tables_of`. `columns`: the same on the device."""
    lens = np.diff(tables["rows"])
    sizes = tuple(int(np.count_nonzero(lens > turn)) for turn in range(lens.max()))
    return StateRuns(spans=runs, turn_sizes=sizes, **{name: columns[name] for name in tables})
