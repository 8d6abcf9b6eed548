"""Attention in plain torch: the CPU's backend, and the reference for the other backends on any device.

Rows of like shape are put into groups: keys and values of a group are gathered through the page table into one padded
block, and one scaled-dot-product call attends for all its rows.

    rows by new tokens and length        group: rows R, queries n, keys L
      1 new, 900 long  ┐                   q    [R, KV heads, n * group, dim]
      1 new, 870 long  ┘ one group         k, v [R, KV heads, L, dim]      padding reads KV slot 0
      300 new          ─ in chunks         mask [R, 1, n * group, L]

Decode steps whose rows share pages are computed in parts: torch_native_cascade.py. Knows the page table and the pool;
it plans every step separately and keeps nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch, Reach
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.page_reader import Indices, PageReader
from mysglang.srt.layers.attention.torch_native_cascade import CascadeMetadata
from mysglang.srt.mem_cache.kv_pool.base import KvPool

LONE_QUERIES = 64
"""A row with more new tokens than this attends on its own."""
QUERY_CHUNK = 256
"""Queries of a lone row's call: bounds the mask, and skips the keys after each chunk."""
GROUP_KEYS = 1 << 16
"""Keys gathered for one group, which bounds the padded copies."""


@dataclass(slots=True)
class Group:
    """Rows that attend in one call. `starts`, `lens` [R]: position of the first query and number of queries."""

    slots: Indices
    starts: Indices
    lens: Indices
    tokens: Indices
    """[R] where the rows' queries begin in the token columns."""

    @property
    def ends(self) -> Indices:
        """[R] position after the last query, which is how many keys the row has."""
        ends: Indices = self.starts + self.lens
        return ends

    @property
    def num_queries(self) -> int:
        """Queries of the row that has most; the others are padded."""
        return int(self.lens.max())


@dataclass(slots=True)
class GroupIndex:
    """A group's indices on the device, for one reach."""

    shape: tuple[int, int, int]
    """(R, n, L)."""
    queries: Tensor
    """[R * n] tokens; a padding query repeats its row's last."""
    filled: Tensor | None
    """Which of the R * n are no padding; None: all."""
    keys: Tensor
    """[R * L] KV slots."""
    visible: Tensor | None
    """[R, 1, n, L]; None: all."""
    masks: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, group_size: int, dtype: torch.dtype) -> Tensor | None:
        """Returns the additive mask [R, 1, n * group_size, L], made once for all layers."""
        if self.visible is None:
            return None
        mask = self.masks.get((group_size, dtype))
        if mask is None:
            mask = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            mask = mask.masked_fill_(~self.visible, float("-inf")).repeat_interleave(group_size, dim=2)
            self.masks[group_size, dtype] = mask
        return mask


class TorchNativeMetadata:
    """The row groups of a step, and for each reach (window) of the model's layers the indices of the keys that they
    read.
    """

    def __init__(self, groups: list[Group], pages: PageReader) -> None:
        self._groups = groups
        self._pages = pages
        self._indexed: dict[Reach, list[GroupIndex]] = {}

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
        """Attends. q: [T, num_heads * head_dim]; keys, values: [KV slots, num_kv_heads, head_dim or value_dim]. Returns
        [T, num_heads * value_dim].
        """
        if spec.reach not in self._indexed:
            self._indexed[spec.reach] = [self._index(group, spec.reach) for group in self._groups]
        out = torch.empty(len(q), spec.num_heads * spec.value_dim, dtype=q.dtype, device=q.device)
        for group in self._indexed[spec.reach]:
            attended = attend(q.index_select(0, group.queries), keys, values, spec, group)
            if group.filled is None:
                out.index_copy_(0, group.queries, attended)
            else:
                out.index_copy_(0, group.queries[group.filled], attended[group.filled])
        return out

    def _index(self, group: Group, reach: Reach) -> GroupIndex:
        on_device = self._pages.on_device
        rows, n, ends = len(group.lens), group.num_queries, group.ends
        first = reach.firsts(group.starts)
        length = int((ends - first).max())
        key_positions = first[:, None] + np.arange(length)
        query = np.minimum(np.arange(n), group.lens[:, None] - 1)
        positions = group.starts[:, None] + query
        visible = key_positions[:, None, :] <= positions[:, :, None]
        visible &= key_positions[:, None, :] >= reach.firsts(positions)[:, :, None]
        full = bool((group.lens == n).all())
        past_end = on_device(key_positions >= ends[:, None])
        return GroupIndex(
            shape=(rows, n, length),
            queries=on_device((group.tokens[:, None] + query).reshape(-1)),
            filled=None if full else on_device(np.flatnonzero(np.arange(n) < group.lens[:, None])),
            keys=self._pages.kv_slots(group.slots, key_positions).masked_fill_(past_end, 0).reshape(-1),
            visible=None if visible.all() else on_device(visible[:, None]),
        )


class TorchNativeBackend:
    """Scaled-dot-product attention over gathered keys."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        pages = PageReader(self._page_table, self.kv_pool.page_size)
        if batch.host.shared is not None:
            return CascadeMetadata(batch.host, batch.host.shared, pages)
        return TorchNativeMetadata(list(group_rows(batch.host)), pages)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, TorchNativeMetadata | CascadeMetadata)
        keys, values = self.kv_pool.slots(spec.layer_id)
        return metadata.attend(q, keys, values, self.kv_pool.over_stored(spec))


def group_rows(host: ModelWorkerBatch) -> Iterator[Group]:
    """Yields groups of rows: long rows in chunks of queries, the others together with rows of about as many queries and
    keys.
    """
    lens, ends = host.extend_lens.astype(np.int64), host.seq_lens.astype(np.int64)
    slots, starts, tokens = host.slots.astype(np.int64), ends - lens, np.cumsum(lens) - lens
    for row in np.flatnonzero(lens > LONE_QUERIES):
        for done in range(0, int(lens[row]), QUERY_CHUNK):
            n = min(QUERY_CHUNK, int(lens[row]) - done)
            yield Group(slots[row : row + 1], starts[row : row + 1] + done, np.array([n]), tokens[row : row + 1] + done)

    short = np.flatnonzero(lens <= LONE_QUERIES)
    magnitude = np.ceil(np.log2(lens[short]))
    short = short[np.lexsort((-ends[short], magnitude))]
    magnitude = np.ceil(np.log2(lens[short]))
    begin = 0
    while begin < len(short):
        longest = int(ends[short[begin]])
        fits = magnitude[begin:] == magnitude[begin]
        fits &= (ends[short[begin:]] * 2 >= longest) | (longest <= LONE_QUERIES)
        fits &= np.arange(len(fits)) * longest < GROUP_KEYS
        count = len(fits) if fits.all() else int(np.argmin(fits))
        rows = short[begin : begin + count]
        yield Group(slots[rows], starts[rows], lens[rows], tokens[rows])
        begin += count


def attend(q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec, group: GroupIndex) -> Tensor:
    """Attends with one group. q: [R * n, num_heads * head_dim]; keys, values: [KV slots, num_kv_heads, head_dim or
    value_dim]. Returns [R * n, num_heads * value_dim].
    """
    rows, n, length = group.shape
    heads, dim = spec.num_kv_heads, spec.head_dim
    group_size = spec.num_heads // heads
    # The query heads that share a KV head are treated as further queries of that head.
    q = q.view(rows, n, heads, group_size, dim).transpose(1, 2).reshape(rows, heads, n * group_size, dim)
    k = keys.index_select(0, group.keys).to(q.dtype).view(rows, length, heads, dim).transpose(1, 2)
    if spec.latent_dim is None:
        v = values.index_select(0, group.keys).to(q.dtype).view(rows, length, heads, dim).transpose(1, 2)
    else:
        # Values are as long as keys, and only the beginning of their sum is used: torch has a fused call only for
        # values of the keys' size.
        v = k
    mask = group.mask(group_size, q.dtype)
    if spec.logit_cap or spec.sinks is not None:
        out = _plain_attention(q, k, v, mask, spec)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale)
    out = out.view(rows, heads, n, group_size, dim)[..., : spec.value_dim]
    if spec.value_scale != 1.0:
        out = out * spec.value_scale
    return out.transpose(1, 2).reshape(rows * n, -1)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Computes attention with soft-capped scores or with sinks, which the fused call does not support.

    q: [R, KV heads, n * group, dim]; k, v: [R, KV heads, L, dim].
    """
    scores = torch.matmul(q, k.transpose(2, 3)).float() * spec.scale
    if spec.logit_cap:
        scores = spec.logit_cap * torch.tanh(scores / spec.logit_cap)
    if mask is not None:
        scores = scores + mask
    if spec.sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        # One more column takes part in the softmax, and what it gets is dropped: its value is zero.
        _, heads, queries, _ = scores.shape
        sinks = spec.sinks.view(heads, 1, -1).expand(heads, queries * heads // spec.num_heads, -1)
        column = sinks.reshape(heads, queries, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    return torch.matmul(weights.to(v.dtype), v)
