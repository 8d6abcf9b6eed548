"""Attention with FlashInfer: paged decode on tensor cores, and `flashinfer_prefill` for steps with new tokens.

    plan on the host from the lengths it knows  ->  work lists into the workspace  ->  kernels of all layers

Which pages a row has never leaves the device: `list_pages` writes FlashInfer's index arrays from the page table. A
layer kind is what FlashInfer plans for (heads, scale, window, cap); it is planned when the first layer of that kind
runs, and most models have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

import flashinfer
import numpy as np
import torch
from flashinfer.decode import fast_decode_plan
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.layers.attention.flashinfer_attend import (
    Attended,
    PageLists,
    PrefillMetadata,
    explained_build_failure,
    host_lists,
    window_left,
)
from mysglang.srt.layers.attention.flashinfer_prefill import FlashInferPrefill, kind_of
from mysglang.srt.layers.attention.graph import NO_COLUMNS, HostColumns, PromptCapture
from mysglang.srt.mem_cache.kv_pool.base import KvPool

WORKSPACE_BYTES = 512 << 20
"""Bytes for the partial results of split keys. All plans share them, because steps run one after another."""
DECODE_KERNELS = "fa2"
"""The kernels of FlashAttention 2. FlashInfer chooses them by default, and no others support eight-bit pages under
sixteen-bit queries.
"""
MIN_REPLAY_PAGES = 1 << 22
"""Entries of the page list of captured steps; rows may share pages, so a step can list more than the pool has."""


_workspaces: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


def workspace_on(device: torch.device) -> Tensor:
    """Returns the workspace of a device, freed when its last user is. Layers with a window may have a backend of their
    own, which shares it.
    """
    found = _workspaces.get(device)
    if found is None:
        found = _workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return found


class Wrapper(Protocol):
    """The part of FlashInfer's decode wrappers that is used here."""

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, ...],
        *,
        out: Tensor,
        lse: Tensor | None,
        return_lse: bool,
        k_scale: float,
        v_scale: float,
    ) -> object: ...


@dataclass(slots=True)
class FlashInferMetadata:
    """One decode step, or all of one captured batch size."""

    lists: PageLists
    seq_lens: Ints
    """[R] on the host: what is planned for."""
    captured: bool = False
    wrappers: dict[AttentionSpec, Wrapper] = field(default_factory=dict)
    """Layer kind -> wrapper, planned for this step."""


class FlashInferBackend:
    """Paged attention of bf16 and fp16 with head_dim 64, 128 or 256, over pages of the same or of eight-bit numbers."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table
        device = page_table.device
        self._workspace = workspace_on(device)
        self._kinds: dict[AttentionSpec, Kind] = {}
        self._prefill = FlashInferPrefill(pool, page_table, self._workspace)
        self._replay_indices: Tensor | None = None

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        if not batch.mode.is_decode:
            return self._prefill.plan(batch)
        host, page_size = batch.host, self.kv_pool.page_size
        num_pages = int((-(-host.seq_lens.astype(np.int64) // page_size)).sum())
        lists = PageLists.empty(len(host.slots), num_pages, batch.slots.device)
        lists.fill(self._page_table, batch, self.kv_pool)
        return FlashInferMetadata(lists, host.seq_lens)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        if isinstance(metadata, PrefillMetadata):
            if not len(k):
                # Another layer has stored the step's keys and values; rows with nothing before them read these alone.
                loc = batch.loc_for(spec)
                k, v = (stored.index_select(0, loc) for stored in self.kv_pool.slots(spec.layer_id))
            return self._prefill.forward(q, k, v, spec, metadata)
        assert isinstance(metadata, FlashInferMetadata)
        wrapper = metadata.wrappers.get(kind_of(spec)) or self._open(kind_of(spec), metadata, q.dtype)
        attended = Attended.empty(q, spec)
        # Tokens may lie at any distance from one another, as in a slice of a wider projection.
        key, value = self.kv_pool.scales(spec.layer_id)
        pages = self.kv_pool.pages(spec.layer_id)
        wrapper.run(q.view(attended.out.shape), pages, k_scale=key, v_scale=value, **attended.arguments)
        return attended.finished(spec)

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        return self._prefill if self._prefill.captures(specs) else None

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
        return FlashInferMetadata(lists, batch.host.seq_lens, captured=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, FlashInferMetadata)
        metadata.lists.fill(self._page_table, batch, self.kv_pool)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        assert isinstance(metadata, FlashInferMetadata)
        for kind, wrapper in metadata.wrappers.items():
            self._kinds[kind].plan_decode(wrapper, metadata.lists, seq_lens)

    def covers(self, seq_lens: Ints) -> bool:
        assert self._replay_indices is not None
        return int(seq_lens.sum()) <= len(self._replay_indices)

    def _open(self, kind: AttentionSpec, metadata: FlashInferMetadata, dtype: torch.dtype) -> Wrapper:
        """Returns the wrapper for this kind of layer, planned for the step."""
        if kind not in self._kinds:
            self._kinds[kind] = Kind(kind, dtype, self.kv_pool, self._workspace)
        state = self._kinds[kind]
        wrapper = state.decode_wrapper(metadata.lists, captured=metadata.captured)
        state.plan_decode(wrapper, metadata.lists, metadata.seq_lens)
        metadata.wrappers[kind] = wrapper
        return wrapper


class Kind:
    """FlashInfer's state for decode steps in one kind of layer.

    All plans of a kind share one work-list buffer: on the device steps follow one another, and on the host a plan waits
    until the copy of the one before has left the pinned buffer.
    """

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, pool: KvPool, workspace: Tensor) -> None:
        self._spec = spec
        self._dtype = dtype
        self._stored = pool.dtype
        self._page_size = pool.page_size
        self._workspace = workspace
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True, backend=DECODE_KERNELS
        )

    def decode_wrapper(self, lists: PageLists, *, captured: bool) -> Wrapper:
        """Returns the wrapper of uncaptured decoding, or a new one whose arrays keep their addresses."""
        if not captured:
            wrapper: Wrapper = self._decode
            return wrapper
        wrapper = self._share(
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                "NHD",
                use_cuda_graph=True,
                use_tensor_cores=True,
                backend=DECODE_KERNELS,
                paged_kv_indptr_buffer=lists.indptr,
                paged_kv_indices_buffer=lists.indices,
                paged_kv_last_page_len_buffer=lists.last_page_lens,
            )
        )
        return wrapper

    def plan_decode(self, wrapper: Any, lists: PageLists, seq_lens: Ints) -> None:
        """Plans a step with one token in each row. A wrapper's first plan is the complete one, which chooses the
        kernels.
        """
        indptr, last_page_lens = (torch.from_numpy(array) for array in host_lists(seq_lens, self._page_size))
        heads = (self._spec.num_heads, self._spec.num_kv_heads, self._spec.head_dim, self._page_size)
        options = {
            "sm_scale": self._spec.scale,
            "window_left": window_left(self._spec),
            "logits_soft_cap": self._spec.logit_cap,
            "q_data_type": self._dtype,
            "kv_data_type": self._stored,
        }
        self._copied.synchronize()
        if not hasattr(wrapper, "_cached_module"):
            with explained_build_failure(wrapper):
                wrapper.plan(indptr, lists.indices[: int(indptr[-1])], last_page_lens, *heads, **options)
        fast_decode_plan(
            wrapper, indptr, lists.indices, last_page_lens, *heads, global_override_indptr_cpu=indptr, **options
        )
        if not wrapper.is_cuda_graph_enabled:
            # The short plan keeps the arrays that it is given, but its kernels read those of the device.
            wrapper._paged_kv_indptr_buf = lists.indptr
            wrapper._paged_kv_last_page_len_buf = lists.last_page_lens
        self._copied.record()

    def _share(self, wrapper: Any) -> Any:
        """Lets the wrapper use the work-list buffers of the first one, on the device and pinned, instead of its own."""
        wrapper._int_workspace_buffer = self._decode._int_workspace_buffer
        wrapper._pin_memory_int_workspace_buffer = self._decode._pin_memory_int_workspace_buffer
        return wrapper
