"""FlashInfer's attention of steps with new tokens: FlashAttention 3 (Hopper) or 2.

    rows   | continued | a long chunk of a long prompt | new | new | new |     a new row has nothing in the cache but
    runs   |   pages   |            copies             |    own keys     |     this step's tokens

Neighbours that read alike are one launch. New rows attend over the step's keys and values where the projection left
them, which is a fifth faster than gathering them from pages. A long chunk of a long prompt reads each of its keys so
often that copying them side by side first is faster, too. Pages of eight-bit numbers hold other values than the step:
then all rows read pages. Knows no decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import flashinfer
import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints, ModelWorkerBatch
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention.flashinfer_attend import (
    Attend,
    Attended,
    CapturedOwnKeys,
    CapturedPages,
    CopiedKeys,
    OwnKeys,
    PagedKeys,
    PageLists,
    PrefillMetadata,
    WorkList,
    window_left,
)
from mysglang.srt.layers.attention.prefill_runs import (
    WORTH_A_RUN,
    Reads,
    Run,
    copied_rows,
    hopper,
    own_from_token,
    runs_of,
)
from mysglang.srt.mem_cache.kv_pool.base import KvPool

REPLAY_PAGES = 1 << 22
"""Entries of the page list of captured steps; rows may share pages."""


class FlashInferPrefill:
    """Attention of prefill steps. It plans a step when the first layer of a kind runs; most models have one kind."""

    def __init__(self, pool: KvPool, page_table: Tensor, workspace: Tensor) -> None:
        self._pool = pool
        self._page_table = page_table
        self._workspace = workspace
        self._kinds: dict[AttentionSpec, PrefillKind] = {}
        self._replay_indices: Tensor | None = None
        # Layers with a window read the end of a long prompt only.
        self._most_copied = (
            page_table.shape[1] * pool.page_size if pool.window is None and hopper(workspace.device) else 0
        )

    def plan(self, batch: ForwardBatch) -> PrefillMetadata:
        host, page_size = batch.host, self._pool.page_size
        runs = self._runs(host)
        lists = None
        if any(run.reads is not Reads.OWN for run in runs):
            num_pages = int((-(-host.seq_lens.astype(np.int64) // page_size)).sum())
            lists = PageLists.empty(len(host.slots), num_pages, batch.slots.device)
            lists.fill(self._page_table, batch, self._pool)
        return PrefillMetadata(runs, lists, host.seq_lens, host.extend_lens)

    def _runs(self, host: ModelWorkerBatch) -> tuple[Run, ...]:
        if self._pool.dtype in LARGEST:
            return (Run(slice(0, host.num_rows), slice(0, host.num_tokens), Reads.PAGES),)
        return runs_of(host.extend_lens, host.seq_lens, self._most_copied)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, metadata: PrefillMetadata) -> Tensor:
        attended = Attended.empty(q, spec)
        # Tokens may lie at any distance from one another, as in a slice of a wider projection.
        q, k, v = q.view(attended.out.shape), k.view(len(q), -1, spec.head_dim), v.view(len(q), -1, spec.head_dim)
        pages, scales = self._pool.pages(spec.layer_id), self._pool.scales(spec.layer_id)
        planned = metadata.planned.get(kind_of(spec)) or self._plan_kind(kind_of(spec), metadata, q.dtype)
        for run, attend in zip(metadata.runs, planned, strict=True):
            tokens = run.tokens
            attend.run(q[tokens], k[tokens], v[tokens], pages, scales, attended.of(tokens))
        return attended.finished(spec)

    def captures(self, specs: Sequence[AttentionSpec]) -> bool:
        """True if steps of such layers can be captured: only the plan of FlashAttention 3 keeps its shape."""
        return all(backend_for(spec, self._pool.dtype, self._workspace.device) == "fa3" for spec in specs)

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        """Returns metadata for capture. Long steps are captured with both kernels, and a replay's plan gives each of
        them its rows.
        """
        host, device = batch.host, batch.slots.device
        if self._replay_indices is None:
            self._replay_indices = torch.zeros(REPLAY_PAGES, dtype=torch.int32, device=device)
        lists = PageLists.empty(len(host.slots), 0, device, self._replay_indices)
        everything = slice(0, len(host.slots)), slice(0, len(batch.input_ids))
        kinds = (Reads.PAGES, Reads.OWN)[: 1 + (len(batch.input_ids) > WORTH_A_RUN)]
        runs = tuple(Run(*everything, reads) for reads in kinds)
        return PrefillMetadata(runs, lists, host.seq_lens, host.extend_lens, captured=True)

    def begin_step(self, batch: ForwardBatch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, PrefillMetadata) and metadata.lists is not None
        metadata.lists.fill(self._page_table, batch, self._pool)

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints, extend_lens: Ints) -> None:
        assert isinstance(metadata, PrefillMetadata)
        own_from = own_from_token(extend_lens, seq_lens) if len(metadata.runs) > 1 else int(extend_lens.sum())
        step = replace(metadata, seq_lens=seq_lens, extend_lens=extend_lens, own_from=own_from)
        for attends in metadata.planned.values():
            for run, attend in zip(metadata.runs, attends, strict=True):
                attend.plan(step, run.rows)

    def covers(self, seq_lens: Ints, extend_lens: Ints) -> bool:
        assert self._replay_indices is not None
        fits = int(seq_lens.sum()) <= len(self._replay_indices)
        return fits and not copied_rows(extend_lens, seq_lens, self._most_copied).any()

    def _plan_kind(self, kind: AttentionSpec, metadata: PrefillMetadata, dtype: torch.dtype) -> Sequence[Attend]:
        if kind not in self._kinds:
            self._kinds[kind] = PrefillKind(kind, dtype, self._pool, self._workspace)
        state = self._kinds[kind]
        metadata.planned[kind] = planned = state.capture(metadata) if metadata.captured else state.plan(metadata)
        return planned


class PrefillKind:
    """FlashInfer's state for one kind of layer: as many wrappers as a step had runs so far."""

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, pool: KvPool, workspace: Tensor) -> None:
        self._options = {
            "causal": True,
            "sm_scale": spec.scale,
            "window_left": window_left(spec),
            "logits_soft_cap": spec.logit_cap,
            "q_data_type": dtype,
            "kv_data_type": pool.dtype,
        }
        self._heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self._page_size = pool.page_size
        self._workspace = workspace
        self._backend = backend_for(spec, pool.dtype, workspace.device)
        self._made: dict[Reads, list[Attend]] = {reads: [] for reads in Reads}
        self._own_work: WorkList | None = None
        self._paged_work: WorkList | None = None

    def plan(self, metadata: PrefillMetadata) -> Sequence[Attend]:
        """Plans every run of the step. Returns one attention function for each run."""
        free = {reads: iter(made) for reads, made in self._made.items()}
        planned = [next(free[run.reads], None) or self._make(run.reads) for run in metadata.runs]
        for run, attend in zip(metadata.runs, planned, strict=True):
            attend.plan(metadata, run.rows)
        return planned

    def capture(self, metadata: PrefillMetadata) -> Sequence[Attend]:
        """Returns one kernel call for each run, planned for the first step."""
        make = {Reads.OWN: self._capture_own, Reads.PAGES: self._capture_pages}
        planned = [make[run.reads](metadata) for run in metadata.runs]
        for run, attend in zip(metadata.runs, planned, strict=True):
            attend.plan(metadata, run.rows)
        return planned

    def _capture_own(self, metadata: PrefillMetadata) -> Attend:
        rows = len(metadata.seq_lens)
        starts = [torch.empty(rows + 1, dtype=torch.int32, device=self._workspace.device) for _ in range(2)]
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=starts[0],
            kv_indptr_buf=starts[1],
            backend=self._backend,
        )
        attend = CapturedOwnKeys(wrapper, self._heads, self._options, self._own_work)
        self._own_work = self._own_work or attend.work
        return attend

    def _capture_pages(self, metadata: PrefillMetadata) -> Attend:
        assert metadata.lists is not None
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
        attend = CapturedPages(wrapper, self._heads, self._page_size, self._options, self._paged_work)
        self._paged_work = self._paged_work or attend.work
        return attend

    def _make(self, reads: Reads) -> Attend:
        """Returns a further attention function of this kind, kept for later steps."""
        workspace, backend = self._workspace, self._backend
        attend: Attend
        if reads is Reads.PAGES:
            paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
            attend = PagedKeys(paged, self._heads, self._page_size, self._options)
        else:
            ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
            if reads is Reads.OWN:
                attend = OwnKeys(ragged, self._heads, self._options)
            else:
                attend = CopiedKeys(ragged, self._heads, self._page_size, self._options)
        self._made[reads].append(attend)
        return attend


def backend_for(spec: AttentionSpec, stored: torch.dtype, device: torch.device) -> str:
    """Returns the FlashInfer backend for these layers. FlashAttention 3 reads pages of eight-bit numbers only under
    queries of such numbers.
    """
    variant = spec.logit_cap > 0 or stored in LARGEST
    return "fa3" if hopper(device) and not variant else "fa2"


@cache
def kind_of(spec: AttentionSpec) -> AttentionSpec:
    """Returns the spec without what is the layer's own, so that equal layers share one plan."""
    return replace(spec, layer_id=0, sinks=None)
