"""HybridBackend: attention of a model whose layers with a window have pages of their own.

Each group of layers, those that see all and those of each window, has a pool, a page table and a backend, which sees a
step as if there were no other layers. The rows, their lengths and the tokens are the same for all groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.graph import GraphAttentionBackend, HostColumns
from mysglang.srt.mem_cache.kv_pool.hybrid import HybridKvPool

Group: TypeAlias = int | None
"""The window; None: layers that see all."""


Column = TypeVar("Column")


@dataclass(frozen=True, slots=True)
class HybridMetadata:
    """The step as each group sees it, planned."""

    steps: Mapping[Group, ForwardBatch]


class HybridBackend:
    """Each layer attends with the backend of its group."""

    def __init__(
        self, pool: HybridKvPool, backends: Mapping[Group, AttentionBackend], specs: Sequence[AttentionSpec]
    ) -> None:
        """A backend for each of the pool's parts, which reads that part."""
        self.kv_pool = pool
        self._backends = backends
        self._group_of = {spec.layer_id: group_of(spec, pool) for spec in specs}

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        steps = self._steps(batch)
        for group, backend in self._backends.items():
            steps[group].attn_metadata = backend.plan(steps[group])
        return HybridMetadata(steps)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        group = self._group_of[spec.layer_id]
        return self._backends[group].forward(q, k, v, spec, steps_of(batch.attn_metadata)[group])

    def _steps(self, batch: ForwardBatch) -> dict[Group, ForwardBatch]:
        assert batch.host.windows or not batch.host.out_cache_loc.any(), (
            "a step that says nothing of the windows' pages"
        )
        hosts = hosts_of(batch.host, self._backends)
        return {group: replace(batch, host=host, attn_backend=self._backends[group]) for group, host in hosts.items()}


class HybridGraphBackend(HybridBackend):
    """The same where decode steps can be captured with every group's backend."""

    def __init__(
        self, pool: HybridKvPool, backends: Mapping[Group, GraphAttentionBackend], specs: Sequence[AttentionSpec]
    ) -> None:
        super().__init__(pool, backends, specs)
        self._captured = backends

    def graph_columns(self, size: int) -> HostColumns:
        return {
            f"{group}:{name}": column
            for group, backend in self._captured.items()
            for name, column in backend.graph_columns(size).items()
        }

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        for group, host in hosts_of(batch, self._captured).items():
            self._captured[group].fill_columns(host, columns_of(group, columns))

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        steps = self._steps(batch)
        for group, backend in self._captured.items():
            steps[group].attn_columns = columns_of(group, batch.attn_columns)
            steps[group].attn_metadata = backend.open_graph(steps[group])
        return HybridMetadata(steps)

    def begin_step(self, batch: ForwardBatch) -> None:
        steps = steps_of(batch.attn_metadata)
        for group, backend in self._captured.items():
            backend.begin_step(steps[group])

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        steps = steps_of(metadata)
        for group, backend in self._captured.items():
            backend.plan_replay(steps[group].attn_metadata, seq_lens)

    def covers(self, seq_lens: Ints) -> bool:
        return all(backend.covers(seq_lens) for backend in self._captured.values())


def hybrid(
    pool: HybridKvPool, backends: Mapping[Group, AttentionBackend], specs: Sequence[AttentionSpec]
) -> AttentionBackend:
    """One backend out of those of all groups."""
    captured = {group: backend for group, backend in backends.items() if isinstance(backend, GraphAttentionBackend)}
    if len(captured) == len(backends):
        return HybridGraphBackend(pool, captured, specs)
    return HybridBackend(pool, backends, specs)


def group_of(spec: AttentionSpec, pool: HybridKvPool) -> Group:
    """In which part of the pool a layer's keys and values are: a window so long that nothing is saved has none."""
    return spec.window if spec.window in pool.parts else None


def hosts_of(batch: ModelWorkerBatch, groups: Iterable[Group]) -> dict[Group, ModelWorkerBatch]:
    """The step as plain arrays for each group. Each row of a window's group sees another part of what rows share."""
    alone = batch if batch.shared is None else replace(batch, shared=None)
    return {group: batch if group is None else alone for group in groups}


def steps_of(metadata: AttentionMetadata) -> Mapping[Group, ForwardBatch]:
    assert isinstance(metadata, HybridMetadata)
    return metadata.steps


def columns_of(group: Group, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Those of one group, under the names that its backend knows."""
    prefix = f"{group}:"
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}
