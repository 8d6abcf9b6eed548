"""BySpace: attention of a model with several page spaces. A model with one space has its backend itself, without this.

Each space that carries layers has a store, a page table and a backend, which sees a step as if there were no other
layers. The rows, their lengths and the tokens are the same for all spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch, KvStore
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import (
    FillsColumns,
    GraphAttentionBackend,
    HostColumns,
    MixedCapture,
    OpensGraphs,
    PromptCapture,
    decode_capture,
    mixed_capture,
    prompt_capture,
)

Column = TypeVar("Column")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class StepsBySpace:
    """The attention plan of one step for each page space."""

    steps: Mapping[int, ForwardBatch]


class BySpace:
    """Attends in each layer with the backend of the layer's page space."""

    def __init__(self, pool: KvStore, backends: Mapping[int, AttentionBackend]) -> None:
        """`backends`: maps the number of each space with layers to the backend that reads this space's store of the
        pool.
        """
        self.kv_pool = pool
        self._backends = backends

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        steps = self._steps(batch)
        for space, backend in self._backends.items():
            steps[space].attn_metadata = backend.plan(steps[space])
        return StepsBySpace(steps)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        space = self.kv_pool.space_of(spec.layer_id)
        return self._backends[space].forward(q, k, v, spec, steps_of(batch.attn_metadata)[space])

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        """Returns the prompt captures of all spaces, if every space's backend has one for its layers."""
        captures = all_or_none(
            {space: prompt_capture(backend, self._layers_of(space, specs)) for space, backend in self._backends.items()}
        )
        return None if captures is None else PromptsBySpace(self._steps, captures)

    def mixed_capture(self, specs: Sequence[AttentionSpec], decoding: int) -> MixedCapture | None:
        """Returns the captures of all spaces of steps with so many decoding rows, if every space's backend has one."""
        captures = all_or_none(
            {
                space: mixed_capture(backend, self._layers_of(space, specs), decoding)
                for space, backend in self._backends.items()
            }
        )
        return None if captures is None else MixedBySpace(self._steps, captures)

    def _layers_of(self, space: int, specs: Sequence[AttentionSpec]) -> list[AttentionSpec]:
        return [spec for spec in specs if self.kv_pool.space_of(spec.layer_id) == space]

    def _steps(self, batch: ForwardBatch) -> dict[int, ForwardBatch]:
        return {
            space: replace(batch, host=host_in(batch.host, space), attn_backend=backend)
            for space, backend in self._backends.items()
        }


class PromptsBySpace:
    """Captured steps with new tokens, in every space with its backend's capture (a `graph.PromptCapture`)."""

    def __init__(
        self, steps: Callable[[ForwardBatch], dict[int, ForwardBatch]], captures: Mapping[int, PromptCapture]
    ) -> None:
        """`steps`: gives a step as each space sees it."""
        self._steps = steps
        self._captures = captures

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return open_graphs(self._captures, self._steps(batch), batch)

    def begin_step(self, batch: ForwardBatch) -> None:
        begin_steps(self._captures, batch)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        steps = steps_of(metadata)
        for space, capture in self._captures.items():
            capture.plan_replay(steps[space].attn_metadata, seq_lens, extend_lens)

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        return all(capture.covers(seq_lens, extend_lens) for capture in self._captures.values())


class MixedBySpace(PromptsBySpace):
    """Captured steps of prompts and decoding rows, in every space with its backend's capture (a
    `graph.MixedCapture`).
    """

    def __init__(
        self, steps: Callable[[ForwardBatch], dict[int, ForwardBatch]], captures: Mapping[int, MixedCapture]
    ) -> None:
        super().__init__(steps, captures)
        self._mixed = captures

    def columns(self) -> HostColumns:
        return in_spaces({space: capture.columns() for space, capture in self._mixed.items()})

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        fill_in_spaces(self._mixed, batch, columns)


class CapturedBySpace(BySpace):
    """A backend by space whose decode steps can be captured, because every space's backend can."""

    def __init__(self, pool: KvStore, backends: Mapping[int, GraphAttentionBackend]) -> None:
        super().__init__(pool, backends)
        self._captured = backends

    def graph_columns(self, size: int) -> HostColumns:
        return in_spaces({space: backend.graph_columns(size) for space, backend in self._captured.items()})

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        fill_in_spaces(self._captured, batch, columns)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        return open_graphs(self._captured, self._steps(batch), batch)

    def begin_step(self, batch: ForwardBatch) -> None:
        begin_steps(self._captured, batch)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        steps = steps_of(metadata)
        for space, backend in self._captured.items():
            backend.plan_replay(steps[space].attn_metadata, seq_lens)

    def covers(self, seq_lens: Ints) -> bool:
        return all(backend.covers(seq_lens) for backend in self._captured.values())


def by_space(pool: KvStore, backends: Mapping[int, AttentionBackend]) -> AttentionBackend:
    """Combines the backends of all page spaces that carry layers into one backend."""
    captured = all_or_none({space: decode_capture(backend) for space, backend in backends.items()})
    return BySpace(pool, backends) if captured is None else CapturedBySpace(pool, captured)


def all_or_none(found: Mapping[int, Found | None]) -> dict[int, Found] | None:
    """Returns what was found for every space; None if a space has nothing."""
    known = {space: each for space, each in found.items() if each is not None}
    return known if len(known) == len(found) else None


def open_graphs(
    parts: Mapping[int, OpensGraphs], steps: dict[int, ForwardBatch], batch: ForwardBatch
) -> AttentionMetadata:
    """Opens the graphs of one shape in all spaces. `steps`: the batch as each space sees it."""
    for space, part in parts.items():
        steps[space].attn_columns = columns_of(space, batch.attn_columns)
        steps[space].attn_metadata = part.open_graph(steps[space])
    return StepsBySpace(steps)


def begin_steps(parts: Mapping[int, OpensGraphs], batch: ForwardBatch) -> None:
    steps = steps_of(batch.attn_metadata)
    for space, part in parts.items():
        part.begin_step(steps[space])


def fill_in_spaces(parts: Mapping[int, FillsColumns], batch: ModelWorkerBatch, columns: HostColumns) -> None:
    for space, part in parts.items():
        part.fill_columns(host_in(batch, space), columns_of(space, columns))


def host_in(batch: ModelWorkerBatch, space: int) -> ModelWorkerBatch:
    """Returns the plain arrays of a step for one space. Groups of rows that share keys are known for the first space
    only; in others each row reads its own keys.
    """
    return batch if space == 0 or batch.shared is None else replace(batch, shared=None)


def steps_of(metadata: AttentionMetadata) -> Mapping[int, ForwardBatch]:
    assert isinstance(metadata, StepsBySpace)
    return metadata.steps


def in_spaces(columns: Mapping[int, HostColumns]) -> HostColumns:
    """Returns the columns of all spaces, each under a name that tells its space; `columns_of` takes them apart."""
    return {f"{space}:{name}": column for space, own in columns.items() for name, column in own.items()}


def columns_of(space: int, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns the columns of one space, under the names that its backend knows."""
    prefix = f"{space}:"
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
