"""StateSteps: the states of a step on the device: what is copied before the layers, and how these go through the rows.

rows with one new token     all at once
rows with several           one after another, cut where a checkpoint is copied out
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from mysglang.srt.forward.forward_batch import StateRun, StateStep
from mysglang.srt.forward.worker_batch import Longs, ModelWorkerBatch, StateColumns
from mysglang.srt.mem_cache.kv_pool.states import StatePool
from mysglang.srt.model_executor.padding import no_states
from mysglang.srt.platforms.upload import Uploader


class StateStager(Protocol):
    """Prepares the states of steps."""

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        """Queue the copies that come before the layers, after the table writes. None: no layer keeps a state."""
        ...


class NoStateSteps:
    """A null object for a model whose layers keep no state."""

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        return None


NO_STATE_STEPS = NoStateSteps()


class StateSteps:
    """Implements `StateStager` over the pool of a model."""

    def __init__(self, pool: StatePool, uploader: Uploader) -> None:
        self._pool = pool
        self._uploader = uploader

    def begin(self, batch: ModelWorkerBatch) -> StateStep | None:
        states = no_states(0) if batch.states is None else batch.states
        if len(states.slots) != batch.num_rows:
            raise ValueError("the step does not say the state of each row, and layers of the model keep some")
        single, runs = cut(batch, states, self._pool.num_states)
        columns: dict[str, Longs] = {"single": entries(states, self._pool.num_states)[single]}
        if runs:
            columns["single_tokens"] = (np.cumsum(batch.extend_lens, dtype=np.int64) - 1)[single]
        if len(states.targets):
            columns |= {"sources": states.sources, "targets": states.targets}
        up = self._uploader.upload(columns)
        if len(states.targets):
            self._pool.copy(up["sources"], up["targets"])
        return StateStep(self._pool, runs, up["single"], up.get("single_tokens"))


def entries(states: StateColumns, no_state: int) -> Longs:
    """[R] the entry of the pool for each row; `no_state`: that of rows without a state."""
    found: Longs = np.where(states.slots < 0, no_state, states.slots).astype(np.int64)
    return found


def cut(batch: ModelWorkerBatch, states: StateColumns, no_state: int) -> tuple[Longs, tuple[StateRun, ...]]:
    """The rows with one new token, and the runs of all others. A row whose only token follows a checkpoint that it
    copies out counts as a run.
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
