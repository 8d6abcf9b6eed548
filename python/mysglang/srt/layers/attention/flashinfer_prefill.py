"""FlashInfer's attention of steps with new tokens: FlashAttention 3 (Hopper) or 2.

    rows   | continued | new | new | new |     a new row has nothing in the cache but this step's tokens
    runs   |   pages   |    own keys     |     neighbours that read alike are one launch

New rows attend over the step's keys and values where the projection left them, which is a fifth faster than gathering
them from pages. Knows no decode step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import flashinfer
import numpy as np
import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.cuda.kvcache import list_pages
from mysglang.srt.layers.attention.prefill_runs import Run, runs_of, starts_of
from mysglang.srt.mem_cache.kv_pool.base import KvPool


REPLAY_PAGES = 1 << 22
"""Entries of the page list of captured steps; rows may share pages."""


@dataclass(frozen=True, slots=True)
class PageLists:
    """FlashInfer's index arrays on the device, int32. indptr: [R + 1]; indices: [pages]; last_page_lens: [R]."""

    indptr: Tensor
    indices: Tensor
    last_page_lens: Tensor

    @classmethod
    def empty(cls, rows: int, pages: int, device: torch.device, indices: Tensor | None = None) -> PageLists:
        def make(length: int) -> Tensor:
            return torch.empty(length, dtype=torch.int32, device=device)

        return cls(make(rows + 1), make(pages) if indices is None else indices, make(rows))

    def fill(self, page_table: Tensor, batch: ForwardBatch, page_size: int) -> None:
        """Queue the kernel that writes them."""
        pages = (self.indptr, self.indices, self.last_page_lens)
        list_pages(page_table, batch.slots, batch.seq_lens, page_size, *pages)


class Attend(Protocol):
    """Attention of one run in one kind of layer."""

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        """Work out who computes what; what was planned before is over."""
        ...

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, Tensor], out: Tensor) -> None:
        """q, out: [tokens, num_heads, head_dim]; k, v: [tokens, num_kv_heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class PrefillMetadata:
    """One step."""

    runs: tuple[Run, ...]
    lists: PageLists | None
    """Of all rows; None if none reads pages."""
    seq_lens: Ints
    extend_lens: Ints
    """[R] on the host."""
    planned: dict[AttentionSpec, Sequence[Attend]] = field(default_factory=dict)
    """By layer kind, for each run."""
    captured: bool = False
    """Whether it stands for all steps of a captured size, with the lengths of the first."""


class FlashInferPrefill:
    """What is planned for a step is planned when the first layer of a kind runs; most models have one kind."""

    def __init__(self, pool: KvPool, page_table: Tensor, workspace: Tensor) -> None:
        self._pool = pool
        self._page_table = page_table
        self._workspace = workspace
        self._kinds: dict[AttentionSpec, PrefillKind] = {}
        self._replay_indices: Tensor | None = None

    def plan(self, batch: ForwardBatch) -> PrefillMetadata:
        host, page_size = batch.host, self._pool.page_size
        runs = runs_of(host.extend_lens, host.seq_lens)
        lists = None
        if not all(run.own for run in runs):
            num_pages = int((-(-host.seq_lens.astype(np.int64) // page_size)).sum())
            lists = PageLists.empty(len(host.slots), num_pages, batch.slots.device)
            lists.fill(self._page_table, batch, page_size)
        return PrefillMetadata(runs, lists, host.seq_lens, host.extend_lens)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, metadata: PrefillMetadata) -> Tensor:
        out = torch.empty(len(q), spec.num_heads, spec.head_dim, dtype=q.dtype, device=q.device)
        # Tokens may lie at any distance from one another, as in a slice of a wider projection.
        q, k, v = q.view(out.shape), k.view(len(q), -1, spec.head_dim), v.view(len(q), -1, spec.head_dim)
        pages = self._pool.pages(spec.layer_id)
        planned = metadata.planned.get(kind_of(spec)) or self._plan_kind(kind_of(spec), metadata, q.dtype)
        for run, attend in zip(metadata.runs, planned, strict=True):
            tokens = run.tokens
            attend.run(q[tokens], k[tokens], v[tokens], pages, out[tokens])
        return out.view(len(q), -1)

    def captures(self, specs: Sequence[AttentionSpec]) -> bool:
        """Whether steps of such layers can be captured: only the plan of FlashAttention 3 keeps its shape."""
        return all(backend_for(spec, self._workspace.device) == "fa3" for spec in specs)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        """Captured steps read pages: whether rows have a prefix differs from step to step."""
        host, device = batch.host, batch.slots.device
        if self._replay_indices is None:
            self._replay_indices = torch.zeros(REPLAY_PAGES, dtype=torch.int32, device=device)
        lists = PageLists.empty(len(host.slots), 0, device, self._replay_indices)
        runs = (Run(slice(0, len(host.slots)), slice(0, len(batch.input_ids)), own=False),)
        return PrefillMetadata(runs, lists, host.seq_lens, host.extend_lens, captured=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, PrefillMetadata) and metadata.lists is not None
        metadata.lists.fill(self._page_table, batch, self._pool.page_size)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        assert isinstance(metadata, PrefillMetadata)
        step = replace(metadata, seq_lens=seq_lens, extend_lens=extend_lens)
        for attends in metadata.planned.values():
            for run, attend in zip(metadata.runs, attends, strict=True):
                attend.plan(step, run.rows)

    def covers(self, seq_lens: Ints) -> bool:
        assert self._replay_indices is not None
        return int(seq_lens.sum()) <= len(self._replay_indices)

    def _plan_kind(self, kind: AttentionSpec, metadata: PrefillMetadata, dtype: torch.dtype) -> Sequence[Attend]:
        if kind not in self._kinds:
            self._kinds[kind] = PrefillKind(kind, dtype, self._pool.page_size, self._workspace)
        state = self._kinds[kind]
        metadata.planned[kind] = planned = state.capture(metadata) if metadata.captured else state.plan(metadata)
        return planned


class PrefillKind:
    """FlashInfer's state for one kind of layer: as many wrappers as a step had runs so far."""

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, page_size: int, workspace: Tensor) -> None:
        self._options = {
            "causal": True,
            "sm_scale": spec.scale,
            "window_left": window_left(spec),
            "logits_soft_cap": spec.logit_cap,
            "q_data_type": dtype,
        }
        self._heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self._page_size = page_size
        self._workspace = workspace
        self._backend = backend_for(spec, workspace.device)
        self._own: list[Attend] = []
        self._paged: list[Attend] = []
        self._captured: CapturedPages | None = None

    def plan(self, metadata: PrefillMetadata) -> Sequence[Attend]:
        """One for each run, all planned."""
        own, paged = iter(range(len(metadata.runs))), iter(range(len(metadata.runs)))
        planned = [self._own_at(next(own)) if run.own else self._paged_at(next(paged)) for run in metadata.runs]
        for run, attend in zip(metadata.runs, planned, strict=True):
            attend.plan(metadata, run.rows)
        return planned

    def capture(self, metadata: PrefillMetadata) -> Sequence[Attend]:
        """The one run's, planned for the first step. All captured sizes share the buffers that hold a plan."""
        assert metadata.lists is not None
        (run,) = metadata.runs
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=torch.empty_like(metadata.lists.indptr),
            paged_kv_indptr_buf=metadata.lists.indptr,
            paged_kv_indices_buf=metadata.lists.indices,
            paged_kv_last_page_len_buf=metadata.lists.last_page_lens,
            backend=self._backend,
        )
        attend = CapturedPages(wrapper, self._heads, self._page_size, self._options, self._captured)
        self._captured = self._captured or attend
        attend.plan(metadata, run.rows)
        return (attend,)

    def _own_at(self, number: int) -> Attend:
        if number == len(self._own):
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self._workspace, "NHD", backend=self._backend)
            self._own.append(OwnKeys(wrapper, self._heads, self._options))
        return self._own[number]

    def _paged_at(self, number: int) -> Attend:
        if number == len(self._paged):
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=self._backend)
            self._paged.append(PagedKeys(wrapper, self._heads, self._page_size, self._options))
        return self._paged[number]


class OwnKeys:
    """Attends over the keys and values of the step itself."""

    def __init__(self, wrapper: Any, heads: tuple[int, int, int], options: dict[str, Any]) -> None:
        self._wrapper = wrapper
        self._heads = heads
        self._options = options
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        starts = pinned(starts_of(metadata.extend_lens[rows]))
        # The copy of the plan before must have left the wrapper's pinned buffer.
        self._copied.synchronize()
        with told_how_to_build(self._wrapper):
            self._wrapper.plan(starts, starts, *self._heads, **self._options)
        self._copied.record()

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, Tensor], out: Tensor) -> None:
        self._wrapper.run(q, k, v, out=out)


class PagedKeys:
    """Attends over pages."""

    def __init__(self, wrapper: Any, heads: tuple[int, int, int], page_size: int, options: dict[str, Any]) -> None:
        self._wrapper = wrapper
        self._heads = heads
        self._page_size = page_size
        self._options = options
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        assert metadata.lists is not None
        all_starts, _ = host_lists(metadata.seq_lens, self._page_size)
        starts, last_page_lens = host_lists(metadata.seq_lens[rows], self._page_size)
        first = int(all_starts[rows.start])
        indices = metadata.lists.indices[first : first + int(starts[-1])]
        extends = metadata.extend_lens[rows]
        self._copied.synchronize()
        with told_how_to_build(self._wrapper):
            self._wrapper.plan(
                pinned(starts_of(extends)),
                pinned(starts),
                indices,
                pinned(last_page_lens),
                *self._heads,
                self._page_size,
                # Otherwise found by a loop over the rows in Python.
                max_token_per_sequence=int(extends.max()),
                **self._options,
            )
        self._copied.record()

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, Tensor], out: Tensor) -> None:
        self._wrapper.run(q, pages, out=out)


class CapturedPages(PagedKeys):
    """The same in a captured step of so many tokens and rows: every plan is written to the same place."""

    def __init__(
        self,
        wrapper: Any,
        heads: tuple[int, int, int],
        page_size: int,
        options: dict[str, Any],
        other: CapturedPages | None,
    ) -> None:
        """Shares the buffers of `other`, if there is one: on the device steps follow one another."""
        super().__init__(wrapper, heads, page_size, options)
        self._tokens = 0
        if other is not None:
            wrapper._int_workspace_buffer = other._wrapper._int_workspace_buffer
            wrapper._pin_memory_int_workspace_buffer = other._wrapper._pin_memory_int_workspace_buffer
            self._copied = other._copied

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        """The first plan finds the kernels; the others write work lists of the same shape, and nothing else."""
        if not self._tokens:
            self._tokens = int(metadata.extend_lens.sum())
            super().plan(metadata, rows)
            return
        starts, _ = host_lists(metadata.seq_lens, self._page_size)
        token_starts, wrapper = starts_of(metadata.extend_lens), self._wrapper
        heads, kv_heads, dim = self._heads
        self._copied.synchronize()
        wrapper._cached_module.plan(
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            wrapper._pin_memory_int_workspace_buffer,
            *(torch.from_numpy(array) for array in (token_starts, starts, metadata.seq_lens)),
            self._tokens,
            len(metadata.seq_lens),
            heads,
            kv_heads,
            self._page_size,
            True,
            dim,
            dim,
            True,
            self._options["window_left"],
        )
        self._copied.record()


def backend_for(spec: AttentionSpec, device: torch.device) -> str:
    """Of FlashAttention 3 only the plain kernel is used: each variant is a minute of compiling at first use."""
    variant = spec.window is not None or spec.logit_cap > 0
    return "fa3" if torch.cuda.get_device_capability(device)[0] == 9 and not variant else "fa2"


@contextmanager
def told_how_to_build(wrapper: Any) -> Iterator[None]:
    """FlashInfer compiles a kernel when a wrapper is first planned; say what to do where that fails."""
    built = getattr(wrapper, "_cached_module", None) is not None
    try:
        yield
    except (RuntimeError, OSError) as error:
        if built:
            raise
        raise ConfigError(
            f"--attention-backend flashinfer could not build its kernels ({error}). "
            "Install the CUDA compiler that fits torch, or use --attention-backend triton."
        ) from error


@cache
def kind_of(spec: AttentionSpec) -> AttentionSpec:
    """The spec without its layer."""
    return replace(spec, layer_id=0)


def window_left(spec: AttentionSpec) -> int:
    """Keys before the query's own that are visible; -1 for all."""
    return -1 if spec.window is None else spec.window - 1


def host_lists(seq_lens: Ints, page_size: int) -> tuple[Ints, Ints]:
    """indptr and last_page_lens of rows of these lengths, int32."""
    counts = -(-seq_lens // page_size)
    return starts_of(counts), (seq_lens - (counts - 1) * page_size).astype(np.int32, copy=False)


def pinned(array: Ints) -> Tensor:
    """A copy that the device can fetch by itself."""
    return torch.from_numpy(array).pin_memory()
