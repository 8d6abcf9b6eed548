"""One run of rows in one kind of layer with FlashInfer: planning it, and attending.

    OwnKeys           over the step's keys and values where the projection left them
    PagedKeys         over pages
    CopiedKeys        over copies of a row's keys, which lie side by side
    Captured…         the same in captured steps, whose plans all go to one place

What is planned depends on lengths alone, which the host knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.cuda.attention_sinks import weigh_sinks
from mysglang.srt.kernels.cuda.kvcache import list_pages
from mysglang.srt.kernels.kvcache import KvScales
from mysglang.srt.layers.attention.prefill_runs import Run, starts_of
from mysglang.srt.mem_cache.kv_pool.base import KvPool


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

    def fill(self, page_table: Tensor, batch: ForwardBatch, pool: KvPool) -> None:
        """Queues the kernel that writes these lists."""
        pages = (self.indptr, self.indices, self.last_page_lens)
        rows = (page_table, batch.slots, batch.seq_lens, pool.page_size)
        list_pages(*rows, *pages, extend_lens=batch.extend_lens, window=pool.window)


@dataclass(frozen=True, slots=True)
class PrefillMetadata:
    """The runs, page lists and lengths of one prefill step, which all layers share."""

    runs: tuple[Run, ...]
    lists: PageLists | None
    """Page lists of all rows; None if no row reads pages."""
    seq_lens: Ints
    extend_lens: Ints
    """[R] on the host."""
    planned: dict[AttentionSpec, Sequence[Attend]] = field(default_factory=dict)
    """Layer kind -> the planned call of each run."""
    captured: bool = False
    """True if this is the metadata of all steps of a captured size, planned with the lengths of the first. All runs
    then contain all rows.
    """
    own_from: int = 0
    """Captured steps: number of tokens before those whose rows attend over their own keys."""


@dataclass(frozen=True, slots=True)
class Attended:
    """The place of what a layer's kernels give."""

    out: Tensor
    """[tokens, num_heads, head_dim]"""
    lse: Tensor | None
    """[tokens, num_heads] float32, log-sum-exps of the scores in base 2; None: the layer needs none."""

    @classmethod
    def empty(cls, q: Tensor, spec: AttentionSpec) -> Attended:
        """q: [tokens, …]. FlashInfer's kernels know no sinks, which need the log-sum-exps afterwards."""
        out = torch.empty(len(q), spec.num_heads, spec.head_dim, dtype=q.dtype, device=q.device)
        return cls(out, None if spec.sinks is None else torch.empty(out.shape[:2], device=q.device))

    @property
    def arguments(self) -> dict[str, Any]:
        """Returns these as a FlashInfer wrapper's `run` takes them."""
        return {"out": self.out, "lse": self.lse, "return_lse": self.lse is not None}

    def of(self, tokens: slice) -> Attended:
        return Attended(self.out[tokens], None if self.lse is None else self.lse[tokens])

    def finished(self, spec: AttentionSpec) -> Tensor:
        """Returns what the layer gives, [tokens, num_heads * head_dim]."""
        if self.lse is not None and spec.sinks is not None:
            weigh_sinks(self.out, self.lse, spec.sinks)
        return self.out.flatten(1)


class Attend(Protocol):
    """Attention of one run in one kind of layer."""

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        """Plans the work of the kernel's blocks. This replaces the earlier plan."""
        ...

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, ...], scales: KvScales, into: Attended) -> None:
        """Runs the kernel. q: [tokens, num_heads, head_dim]; k, v: [tokens, num_kv_heads, head_dim]. scales: of the
        pages.
        """
        ...


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
        with explained_build_failure(self._wrapper):
            self._wrapper.plan(starts, starts, *self._heads, **self._options)
        self._copied.record()

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, ...], scales: KvScales, into: Attended) -> None:
        self._wrapper.run(q, k, v, **into.arguments)


class PagedKeys:
    """Attention over keys in pages, by a planned FlashInfer wrapper."""

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
        with explained_build_failure(self._wrapper):
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

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, ...], scales: KvScales, into: Attended) -> None:
        self._wrapper.run(q, pages, k_scale=scales.key, v_scale=scales.value, **into.arguments)


class CopiedKeys:
    """Attention of one row over copies of its keys. FlashAttention 3 loads neighbouring keys by the tensor memory
    accelerator, which keys in pages rule out, whatever the size of a page.
    """

    def __init__(self, wrapper: Any, heads: tuple[int, int, int], page_size: int, options: dict[str, Any]) -> None:
        self._wrapper = wrapper
        self._heads = heads
        self._page_size = page_size
        self._options = options
        self._pages: Tensor | None = None
        self._num_keys = 0
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        assert metadata.lists is not None and rows.stop == rows.start + 1
        starts, _ = host_lists(metadata.seq_lens[: rows.stop], self._page_size)
        self._pages = metadata.lists.indices[int(starts[-2]) : int(starts[-1])]
        self._num_keys = int(metadata.seq_lens[rows.start])
        token_starts, key_starts = (starts_of(lens[rows]) for lens in (metadata.extend_lens, metadata.seq_lens))
        self._copied.synchronize()
        with explained_build_failure(self._wrapper):
            self._wrapper.plan(pinned(token_starts), pinned(key_starts), *self._heads, **self._options)
        self._copied.record()

    def run(self, q: Tensor, k: Tensor, v: Tensor, pages: tuple[Tensor, ...], scales: KvScales, into: Attended) -> None:
        assert self._pages is not None
        # The memory of both goes back before the next layer, so one layer's copies are alive at a time.
        keys, values = (side.index_select(0, self._pages).flatten(0, 1)[: self._num_keys] for side in pages)
        self._wrapper.run(q, keys, values, **into.arguments)


class CapturedPages(PagedKeys):
    """Attention over pages in captured steps of a fixed number of tokens and rows."""

    def __init__(
        self, wrapper: Any, heads: tuple[int, int, int], page_size: int, options: dict[str, Any], other: WorkList | None
    ) -> None:
        super().__init__(wrapper, heads, page_size, options)
        self.work = WorkList(wrapper, heads, page_size, options, other)
        self._copied = self.work.copied

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        """Plans a step. The first plan chooses the kernel; later ones write the work of the tokens before
        `own_from`.
        """
        if not self.work.tokens:
            super().plan(metadata, rows)
            self.work.tokens = int(metadata.extend_lens.sum())
            return
        starts, _ = host_lists(metadata.seq_lens, self._page_size)
        token_starts = np.minimum(starts_of(metadata.extend_lens), metadata.own_from, dtype=np.int32)
        self.work.write(token_starts, starts, metadata.seq_lens)


class CapturedOwnKeys(OwnKeys):
    """Attention over a step's own keys in captured steps of a fixed number of tokens and rows."""

    def __init__(
        self, wrapper: Any, heads: tuple[int, int, int], options: dict[str, Any], other: WorkList | None
    ) -> None:
        super().__init__(wrapper, heads, options)
        self.work = WorkList(wrapper, heads, 1, options, other)
        self._copied = self.work.copied

    def plan(self, metadata: PrefillMetadata, rows: slice) -> None:
        """Plans a step. The first plan chooses the kernel; later ones write the work of the tokens from `own_from`
        on.
        """
        if not self.work.tokens:
            super().plan(metadata, rows)
            self.work.tokens = int(metadata.extend_lens.sum())
            return
        token_starts = np.maximum(starts_of(metadata.extend_lens), metadata.own_from, dtype=np.int32)
        self.work.write(token_starts, token_starts, metadata.extend_lens)


class WorkList:
    """Memory for the plans of a captured kernel. The address is fixed, and all captured sizes share it.

    On the device steps follow one another. A row without queries in `token_starts` is no work.
    """

    def __init__(
        self,
        wrapper: Any,
        heads: tuple[int, int, int],
        page_size: int,
        options: dict[str, Any],
        other: WorkList | None,
    ) -> None:
        self.tokens = 0
        """Tokens of a step; 0 before the first plan."""
        self._wrapper = wrapper
        self._heads = heads
        self._page_size = page_size
        self._window_left = options["window_left"]
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        """Recorded behind each copy of a plan from the pinned buffer, which all captured sizes share, too."""
        if other is not None:
            wrapper._int_workspace_buffer = other._wrapper._int_workspace_buffer
            wrapper._pin_memory_int_workspace_buffer = other._wrapper._pin_memory_int_workspace_buffer
            self.copied = other.copied

    def write(self, token_starts: Ints, key_starts: Ints, key_lens: Ints) -> None:
        """Writes the work of one step. It does what the wrapper's `plan` does, in a short way: FlashAttention 3's plan
        reads nothing else on the device.
        """
        wrapper, (heads, kv_heads, dim) = self._wrapper, self._heads
        self.copied.synchronize()
        wrapper._cached_module.plan(
            wrapper._float_workspace_buffer,
            wrapper._int_workspace_buffer,
            wrapper._pin_memory_int_workspace_buffer,
            *(torch.from_numpy(array) for array in (token_starts, key_starts, key_lens)),
            self.tokens,
            len(key_lens),
            heads,
            kv_heads,
            self._page_size,
            True,
            dim,
            dim,
            True,
            self._window_left,
        )
        self.copied.record()


def window_left(spec: AttentionSpec) -> int:
    """Returns how many keys before the query's own are visible; -1 for all."""
    return -1 if spec.window is None else spec.window - 1


@contextmanager
def explained_build_failure(wrapper: Any) -> Iterator[None]:
    """Explains what to do if FlashInfer fails to compile a kernel, which happens when a wrapper is first planned."""
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


def host_lists(seq_lens: Ints, page_size: int) -> tuple[Ints, Ints]:
    """Returns indptr and last_page_lens of rows of these lengths, int32."""
    counts = -(-seq_lens // page_size)
    return starts_of(counts), (seq_lens - (counts - 1) * page_size).astype(np.int32, copy=False)


def pinned(array: Ints) -> Tensor:
    """Returns a copy that the device can fetch by itself."""
    return torch.from_numpy(array).pin_memory()
