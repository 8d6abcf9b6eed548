"""Tables of the states of a step: which rows go through them at once, and in which spans the others do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import StateRun, StateRuns
from mysglang.srt.forward.worker_batch import Ints, Longs, ModelWorkerBatch, StateColumns
from mysglang.srt.kernels.states import CHUNK
from mysglang.srt.model_executor.padding import no_states


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
    several = batch.extend_lens != 1
    several[states.rows] = True
    return (~several).nonzero()[0], tuple(runs_of(several.nonzero()[0], batch, states, no_state))


def runs_of(rows: Longs, batch: ModelWorkerBatch, states: StateColumns, no_state: int) -> Iterator[StateRun]:
    """Yields the runs of these rows of the step, ascending."""
    copied: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, offset, checkpoint in zip(
        states.rows.tolist(), states.offsets.tolist(), states.checkpoints.tolist(), strict=True
    ):
        copied[row].append((offset, checkpoint))
    at = entries(states, no_state)
    firsts = np.cumsum(batch.extend_lens) - batch.extend_lens
    for row in rows.tolist():
        first, begin = int(firsts[row]), 0
        for offset, checkpoint in copied[row]:
            yield StateRun(first + begin, first + offset, int(at[row]), checkpoint)
            begin = offset
        if begin < (end := int(batch.extend_lens[row])):
            yield StateRun(first + begin, first + end, int(at[row]), None)


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
    return StateRuns(spans=runs, turn_sizes=turn_sizes(tables["rows"]), **{name: columns[name] for name in tables})


def turn_sizes(rows: Ints) -> tuple[int, ...]:
    """Returns how many rows have a first span, a second one, and so on. rows: [P + 1], as `StateRuns.rows`."""
    lens = np.diff(rows)
    return tuple(int(np.count_nonzero(lens > turn)) for turn in range(lens.max()))
