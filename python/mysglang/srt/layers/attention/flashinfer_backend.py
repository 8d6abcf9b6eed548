"""Attention with FlashInfer: FlashAttention 3 (Hopper) or 2 for new tokens, paged decode on tensor cores.

    plan on the host from the lengths it knows  ->  work lists into the workspace  ->  kernels of all layers

Which pages a row has never leaves the device: `list_pages` writes FlashInfer's index arrays from the page table. A
layer kind is what FlashInfer plans for (heads, scale, window, cap); it is planned when the first layer of that kind
runs, and most models have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol

import flashinfer
import numpy as np
import torch
from flashinfer.decode import fast_decode_plan
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.cuda.kvcache import list_pages
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns
from mysglang.srt.mem_cache.kv_pool.base import KvPool

WORKSPACE_BYTES = 512 << 20
"""For the partial results of split keys, shared by all plans: steps run one after another."""
MIN_REPLAY_PAGES = 1 << 22
"""Entries of the page list of captured steps; rows may share pages, so a step can list more than the pool has."""


class Wrapper(Protocol):
    """The part of FlashInfer's wrappers that is common to prefill and decode."""

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor: ...


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


@dataclass(slots=True)
class FlashInferMetadata:
    """One step, or all steps of one captured batch size."""

    lists: PageLists
    seq_lens: Ints
    """[R] on the host: what is planned for."""
    extend_lens: Ints | None
    """[R] on the host; None in decoding."""
    captured: bool = False
    wrappers: dict[AttentionSpec, Wrapper] = field(default_factory=dict)
    """By layer kind, planned for this step."""


class FlashInferBackend:
    """Paged attention of bf16 and fp16 with head_dim 64, 128 or 256."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table
        device = page_table.device
        self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._kinds: dict[AttentionSpec, Kind] = {}
        self._extend_backend = "fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2"
        self._replay_indices: Tensor | None = None

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        host, page_size = batch.host, self.kv_pool.page_size
        num_pages = int((-(-host.seq_lens.astype(np.int64) // page_size)).sum())
        lists = PageLists.empty(len(host.slots), num_pages, batch.slots.device)
        self._list_pages(batch, lists)
        return FlashInferMetadata(lists, host.seq_lens, None if batch.mode.is_decode else host.extend_lens)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, FlashInferMetadata)
        wrapper = metadata.wrappers.get(kind_of(spec)) or self._open(kind_of(spec), metadata, q.dtype)
        out = torch.empty(len(q), spec.num_heads, spec.head_dim, dtype=q.dtype, device=q.device)
        # Tokens may lie at any distance from one another, as in a slice of a wider projection.
        wrapper.run(q.view(out.shape), self.kv_pool.pages(spec.layer_id), out=out)
        return out.view(len(q), -1)

    def graph_columns(self, size: int) -> HostColumns:
        return NO_COLUMNS

    def fill_columns(self, batch: ModelWorkerBatch, columns: HostColumns) -> None:
        pass

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        rows = len(batch.slots)
        if self._replay_indices is None:
            capacity = max(MIN_REPLAY_PAGES, 2 * self.kv_pool.num_pages)
            self._replay_indices = torch.zeros(capacity, dtype=torch.int32, device=batch.slots.device)
        lists = PageLists.empty(rows, 0, batch.slots.device, self._replay_indices)
        return FlashInferMetadata(lists, batch.host.seq_lens, None, captured=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, FlashInferMetadata)
        self._list_pages(batch, metadata.lists)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        assert isinstance(metadata, FlashInferMetadata)
        for kind, wrapper in metadata.wrappers.items():
            self._kinds[kind].plan_decode(wrapper, metadata.lists, seq_lens)

    def covers(self, seq_lens: Ints) -> bool:
        assert self._replay_indices is not None
        return int(seq_lens.sum()) <= len(self._replay_indices)

    def _open(self, kind: AttentionSpec, metadata: FlashInferMetadata, dtype: torch.dtype) -> Wrapper:
        """The wrapper for this kind of layer, planned for the step."""
        if kind not in self._kinds:
            self._kinds[kind] = Kind(kind, dtype, self.kv_pool.page_size, self._workspace, self._extend_backend)
        state = self._kinds[kind]
        if metadata.extend_lens is not None:
            wrapper = state.plan_extend(metadata.lists, metadata.seq_lens, metadata.extend_lens)
        else:
            wrapper = state.decode_wrapper(metadata.lists, captured=metadata.captured)
            state.plan_decode(wrapper, metadata.lists, metadata.seq_lens)
        metadata.wrappers[kind] = wrapper
        return wrapper

    def _list_pages(self, batch: ForwardBatch, lists: PageLists) -> None:
        list_pages(
            self._page_table,
            batch.slots,
            batch.seq_lens,
            self.kv_pool.page_size,
            lists.indptr,
            lists.indices,
            lists.last_page_lens,
        )


class Kind:
    """FlashInfer's state for one kind of layer.

    All plans of a kind share one work-list buffer: on the device steps follow one another, and on the host a plan waits
    until the copy of the one before has left the pinned buffer.
    """

    def __init__(
        self, spec: AttentionSpec, dtype: torch.dtype, page_size: int, workspace: Tensor, extend_backend: str
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        self._page_size = page_size
        self._workspace = workspace
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Of FlashAttention 3 only the plain kernel is built: each variant is a minute of compiling at first use.
        variant = spec.window is not None or spec.logit_cap > 0
        self._extend = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            workspace, "NHD", backend="fa2" if variant else extend_backend
        )
        self._decode = self._share(
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        )

    def plan_extend(self, lists: PageLists, seq_lens: Ints, extend_lens: Ints) -> Wrapper:
        """Any number of new tokens in each row, causal."""
        indptr, last_page_lens = host_lists(seq_lens, self._page_size)
        plan = partial(
            self._extend.plan,
            pinned(starts_of(extend_lens)),
            pinned(indptr),
            lists.indices,
            pinned(last_page_lens),
            self._spec.num_heads,
            self._spec.num_kv_heads,
            self._spec.head_dim,
            self._page_size,
            causal=True,
            sm_scale=self._spec.scale,
            window_left=self._window_left,
            logits_soft_cap=self._spec.logit_cap,
            q_data_type=self._dtype,
        )
        self._copied.synchronize()
        if self._extend._cached_module is None:
            with told_how_to_build():
                plan()
        else:
            plan()
        self._copied.record()
        wrapper: Wrapper = self._extend
        return wrapper

    def decode_wrapper(self, lists: PageLists, *, captured: bool) -> Wrapper:
        """The wrapper of uncaptured decoding, or a new one whose arrays keep their addresses."""
        if not captured:
            wrapper: Wrapper = self._decode
            return wrapper
        wrapper = self._share(
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=True,
                paged_kv_indptr_buffer=lists.indptr,
                paged_kv_indices_buffer=lists.indices,
                paged_kv_last_page_len_buffer=lists.last_page_lens,
            )
        )
        return wrapper

    def plan_decode(self, wrapper: Any, lists: PageLists, seq_lens: Ints) -> None:
        """One token in each row. A wrapper's first plan is the long one, which finds the kernels."""
        indptr, last_page_lens = (torch.from_numpy(array) for array in host_lists(seq_lens, self._page_size))
        heads = (self._spec.num_heads, self._spec.num_kv_heads, self._spec.head_dim, self._page_size)
        options = {
            "sm_scale": self._spec.scale,
            "window_left": self._window_left,
            "logits_soft_cap": self._spec.logit_cap,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }
        self._copied.synchronize()
        if not hasattr(wrapper, "_cached_module"):
            with told_how_to_build():
                wrapper.plan(indptr, lists.indices[: int(indptr[-1])], last_page_lens, *heads, **options)
        fast_decode_plan(
            wrapper, indptr, lists.indices, last_page_lens, *heads, global_override_indptr_cpu=indptr, **options
        )
        if not wrapper.is_cuda_graph_enabled:
            # The short plan keeps the arrays that it is given, but its kernels read those of the device.
            wrapper._paged_kv_indptr_buf = lists.indptr
            wrapper._paged_kv_last_page_len_buf = lists.last_page_lens
        self._copied.record()

    @property
    def _window_left(self) -> int:
        """Keys before the query's own that are visible; -1 for all."""
        return -1 if self._spec.window is None else self._spec.window - 1

    def _share(self, wrapper: Any) -> Any:
        """Let the wrapper use the prefill wrapper's work-list buffers, on the device and pinned, instead of its own."""
        wrapper._int_workspace_buffer = self._extend._int_workspace_buffer
        wrapper._pin_memory_int_workspace_buffer = self._extend._pin_memory_int_workspace_buffer
        return wrapper


@contextmanager
def told_how_to_build() -> Iterator[None]:
    """FlashInfer compiles a kernel when it is first planned for; say what to do where that fails."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"--attention-backend flashinfer could not build its kernels ({error}). "
            "Install the CUDA compiler that fits torch, or use --attention-backend triton."
        ) from error


@cache
def kind_of(spec: AttentionSpec) -> AttentionSpec:
    """The spec without its layer."""
    return replace(spec, layer_id=0)


def host_lists(seq_lens: Ints, page_size: int) -> tuple[Ints, Ints]:
    """indptr and last_page_lens of rows of these lengths, int32."""
    counts = -(-seq_lens // page_size)
    return starts_of(counts), (seq_lens - (counts - 1) * page_size).astype(np.int32, copy=False)


def starts_of(lens: Ints) -> Ints:
    """[R] -> [R + 1] int32: where each begins if they follow one another, and the end."""
    starts = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=starts[1:])
    return starts


def pinned(array: Ints) -> Tensor:
    """A copy that the device can fetch by itself."""
    return torch.from_numpy(array).pin_memory()
