"""Decode attention in parts, in plain torch: shared keys are read once for all their rows, and each row's parts are
merged.

    part of a group      queries of g rows x keys [start, end) of any of them     -> for each row an output and
    part of rows         one query each    x keys of the row's own, padded        -> the log of its sum of exponents

Softmax over a union of keys is the mean of the softmaxes over its parts, weighted with their sums of exponents (the
merging step of FlashAttention; Dao et al. 2022, section 3.1). All in float32: this is what faster cascades are compared
with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, Reach
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Bools, ModelWorkerBatch
from mysglang.srt.layers.attention.page_reader import Indices, PageReader

PART_KEYS = 1 << 14
"""Keys of one part, padding included, which bounds what is gathered at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """B blocks of n rows each; the rows of a block attend to the same L keys."""

    rows: Tensor
    """[B * n] batch rows."""
    keys: Tensor
    """[B, L] KV slots; 0 where no row of the block sees them."""
    visible: Tensor
    """[B, n, L]"""


class CascadeMetadata:
    """The parts of a decode step, made once for each reach that a layer has. Rows' own parts come first."""

    def __init__(self, host: ModelWorkerBatch, shared: SharedPrefixes, pages: PageReader) -> None:
        self._slots = host.slots.astype(np.int64)
        self._ends = host.seq_lens.astype(np.int64)
        self._own = shared.private_starts(len(self._slots)).astype(np.int64)
        self._shared = shared
        self._pages = pages
        self._parts: dict[Reach, list[Part]] = {}

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
        """Attends. q: [R, num_heads * head_dim]; keys, values: [KV slots, num_kv_heads, head_dim or value_dim]. Returns
        [R, num_heads * value_dim] in the dtype of q.
        """
        if spec.reach not in self._parts:
            self._parts[spec.reach] = [*self._own_parts(spec.reach), *self._shared_parts(spec.reach)]
        heads = q.view(len(q), spec.num_heads, spec.head_dim).float()
        merged = Merged.before(len(q), spec, q.device)
        for part in self._parts[spec.reach]:
            merged.add(part.rows, *attend_part(heads[part.rows], keys, values, part, spec))
        return (merged.out * spec.value_scale).to(q.dtype).flatten(1)

    def _own_parts(self, reach: Reach) -> Iterator[Part]:
        """Yields blocks of one row, as many in a part as its bound allows."""
        firsts = np.maximum(self._own, reach.firsts(self._ends - 1))
        lengths = self._ends - firsts
        begin = 0
        order = np.argsort(-lengths, kind="stable")
        while begin < len(order):
            longest = int(lengths[order[begin]])
            rows = order[begin : begin + max(1, PART_KEYS // longest)]
            positions = firsts[rows, None] + np.arange(longest)
            yield self._part(rows, positions, positions < self._ends[rows, None])
            begin += len(rows)

    def _shared_parts(self, reach: Reach) -> Iterator[Part]:
        """Yields one block for each group, or several for long ones. All rows of a group have the keys of its first
        row.
        """
        shared = self._shared
        for group in range(shared.num_groups):
            rows = shared.rows_of(group).astype(np.int64)
            for start in range(int(shared.starts[group]), int(shared.ends[group]), PART_KEYS):
                positions = np.arange(start, min(start + PART_KEYS, int(shared.ends[group])))
                visible = positions >= reach.firsts(self._ends[rows, None] - 1)
                if visible.any():
                    yield self._part(rows, positions[None], visible[None])

    def _part(self, rows: Indices, positions: Indices, visible: Bools) -> Part:
        """Makes a part. rows: [B * n]; positions: [B, L]; visible: [B, n, L], or [B, L] where blocks are of one row."""
        visible = visible.reshape(len(positions), -1, positions.shape[1])
        unseen = np.logical_not(visible.any(axis=1))
        first_rows = rows.reshape(len(positions), -1)[:, 0]
        keys = self._pages.kv_slots(self._slots[first_rows], positions).masked_fill_(self._pages.on_device(unseen), 0)
        return Part(self._pages.on_device(rows), keys, self._pages.on_device(visible))


def attend_part(q: Tensor, keys: Tensor, values: Tensor, part: Part, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Attends with one part. q: [B * n, num_heads, head_dim]. Returns outputs [B * n, num_heads, value_dim], and the
    log-sum-exp [B * n, num_heads] of the scores.

    A row that sees none of the keys has an output of zeros and the log of zero.
    """
    blocks, n, _ = part.visible.shape
    heads, dim = spec.num_kv_heads, spec.head_dim
    group = spec.num_heads // heads
    # The query heads that share a KV head are treated as further queries of that head.
    grouped = q.view(blocks, n, heads, group, dim).permute(0, 2, 1, 3, 4).reshape(blocks, heads, n * group, dim)
    k, v = (x[part.keys].float().transpose(1, 2) for x in (keys, values))
    scores = torch.matmul(grouped, k.transpose(2, 3)) * spec.scale
    if spec.logit_cap:
        scores = spec.logit_cap * torch.tanh(scores / spec.logit_cap)
    hidden = ~part.visible.repeat_interleave(group, dim=1)[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    largest = scores.amax(dim=-1, keepdim=True)
    largest = torch.where(largest.isinf(), 0.0, largest)
    exponents = torch.exp(scores - largest)
    total = exponents.sum(dim=-1, keepdim=True)
    out = torch.matmul(exponents, v) / total.clamp(min=torch.finfo(torch.float32).tiny)
    lse = largest + torch.log(total)

    def by_row(x: Tensor) -> Tensor:
        return x.view(blocks, heads, n, group, -1).permute(0, 2, 1, 3, 4).reshape(blocks * n, spec.num_heads, -1)

    return by_row(out), by_row(lse).squeeze(-1)


@dataclass(slots=True)
class Merged:
    """Rows' attention over the parts so far. The first part that is added must be seen by its rows."""

    out: Tensor
    """[R, num_heads, value_dim] float32."""
    lse: Tensor
    """[R, num_heads] log of the sum of exponents."""

    @classmethod
    def before(cls, rows: int, spec: AttentionSpec, device: torch.device) -> Merged:
        """Returns the state before any part: empty, or the layer's sinks, whose values are zero."""
        out = torch.zeros(rows, spec.num_heads, spec.value_dim, device=device)
        if spec.sinks is not None:
            return cls(out, spec.sinks.expand(rows, -1).clone())
        return cls(out, torch.full((rows, spec.num_heads), float("-inf"), device=device))

    def add(self, rows: Tensor, out: Tensor, lse: Tensor) -> None:
        """Merges another part, of distinct rows."""
        before = self.lse[rows]
        both = torch.logaddexp(before, lse)
        old, new = (torch.exp(x - both)[..., None] for x in (before, lse))
        self.out[rows] = self.out[rows] * old + out * new
        self.lse[rows] = both
