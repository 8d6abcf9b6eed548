"""StateGraph: the states of captured steps with new tokens, in tables that are as large for every step of one size.

    tokens | prompts, padding                               | decoding rows, padding |
    states | in spans as in eager steps, short rows as well | one token of each row  |

The rest of a table are spans without tokens, which kernels skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import StateRun, StateRuns, StateStep
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.kernels.states import CHUNK
from mysglang.srt.layers.attention.graph import NO_COLUMNS, FillsColumns, HostColumns
from mysglang.srt.mem_cache.kv_pool.states import StatePool
from mysglang.srt.model_executor.state_tables import entries, runs_of, states_of, tables_of, turn_sizes

MOST_RUNS = 16
"""Rows of prompts in a captured step. Kernels that take rows through their chunks are launched for so many."""
MOST_SPANS = 3
"""Spans of a row. A chunk of a prompt leaves two checkpoints at most."""
TURN_SIZES = (MOST_RUNS + 1, *[MOST_RUNS] * (MOST_SPANS - 1))
"""`StateRuns.turn_sizes` of such a step. Padding tokens are one more row, of one span."""
NAMED = "state_"
"""How the names of the columns begin."""


class StateGraph(FillsColumns, Protocol):
    """The states of captured steps of one size, whose columns go with the step's upload."""

    def columns(self) -> HostColumns:
        """Returns names, shapes and dtypes of the columns."""
        ...

    def covers(self, batch: ModelWorkerBatch, decoding: int = 0) -> bool:
        """True if there is room for the states of a step without padding, whose last `decoding` rows decode."""
        ...

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        """Returns the states of the step to capture, over its columns on the device."""
        ...


class NoStateGraph:
    """A null object for a model whose layers keep no state."""

    def columns(self) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        pass

    def covers(self, batch: ModelWorkerBatch, decoding: int = 0) -> bool:
        return True

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        return None


NO_STATE_GRAPH = NoStateGraph()


class PromptStates:
    """Implements `StateGraph` over the pool of a model."""

    def __init__(self, pool: StatePool, tokens: int, decoding: int) -> None:
        """`tokens`: new tokens of a step, padding included; the last of them are `decoding` rows' own."""
        self._pool = pool
        self._tokens = tokens
        self._decoding = decoding

    def columns(self) -> HostColumns:
        tokens, decoding, spans = self._tokens, self._decoding, sum(TURN_SIZES)
        return {
            NAMED + "cuts": np.zeros((spans, 5), dtype=np.int32),
            NAMED + "rows": np.zeros(TURN_SIZES[0] + 1, dtype=np.int32),
            NAMED + "turns": np.zeros((spans, 5), dtype=np.int32),
            NAMED + "numbers": np.arange(spans + 1, dtype=np.int32),
            NAMED + "chunks": np.zeros((tokens // CHUNK + spans, 2), dtype=np.int32),
            NAMED + "single": np.full(decoding, self._pool.num_states, dtype=np.int64),
            NAMED + "single_tokens": np.arange(tokens - decoding, tokens, dtype=np.int64),
        }

    def covers(self, batch: ModelWorkerBatch, decoding: int = 0) -> bool:
        prompts, copied = batch.num_rows - decoding, np.bincount(states_of(batch).rows, minlength=1)
        return prompts <= MOST_RUNS and len(copied) <= max(prompts, 1) and int(copied.max()) < MOST_SPANS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        """`batch` is padded if it has decoding rows."""
        states, none, prompts = states_of(batch), self._pool.num_states, batch.num_rows - self._decoding
        runs = [*runs_of(np.flatnonzero(batch.extend_lens[:prompts]), batch, states, none)]
        if padding := self._tokens - batch.num_tokens:
            runs.append(StateRun(batch.num_tokens, self._tokens, none, None))
        tables = tables_of(runs, np.append(batch.extend_lens, padding))
        without_tokens = 0, 0, 0, none, -1
        for name, behind in (("cuts", without_tokens), ("rows", len(runs)), ("chunks", (self._tokens, 0))):
            column, table = columns[NAMED + name], tables[name]
            column[: len(table)] = table
            column[len(table) :] = behind
        turns = columns[NAMED + "turns"]
        turns[:] = without_tokens
        place = taken = 0
        for room, count in zip(TURN_SIZES, turn_sizes(tables["rows"]), strict=False):
            turns[place : place + count] = tables["turns"][taken : taken + count]
            place, taken = place + room, taken + count
        columns[NAMED + "single"][:] = entries(states, none)[prompts:]

    def captured(self, columns: Mapping[str, Tensor]) -> StateStep | None:
        tables = {name: columns[NAMED + name] for name in ("cuts", "rows", "turns", "numbers", "chunks")}
        runs = StateRuns(TableSpans(tables["cuts"], tables["rows"]), turn_sizes=TURN_SIZES, **tables)
        tokens = columns[NAMED + "single_tokens"] if self._decoding else None
        return StateStep(self._pool, runs, columns[NAMED + "single"], tokens)


class TableSpans(Iterable[StateRun]):
    """The spans that tables hold when they are asked for. On a GPU, no step that is captured asks for them."""

    def __init__(self, cuts: Tensor, rows: Tensor) -> None:
        self._cuts = cuts
        self._rows = rows

    def __iter__(self) -> Iterator[StateRun]:
        for start, end, _, entry, checkpoint in self._cuts[: int(self._rows[-1])].tolist():
            yield StateRun(start, end, entry, None if checkpoint < 0 else checkpoint)
