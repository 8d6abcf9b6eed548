"""Attention on the CPU that gives a query the same result bit for bit, whatever the step that it is computed in.

A query's sum over its keys is always made of the same parts, by the same code, at the same place:

    queries    in blocks of QUERIES that begin at multiples of it, those that the step has not left zero, so each call
               has the same shape and a query's place in it follows from its position alone
    keys       in spans of SPAN that begin at multiples of it, joined one after another by their maxima and sums of
               exponents (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); a key that a
               query does not see weighs exactly nothing

So prompts in chunks, cached beginnings, decoding and neighbours make no difference. Knows the page table and the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionMetadata, AttentionSpec, ForwardBatch, Reach
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.page_reader import PageReader
from mysglang.srt.mem_cache.kv_pool.base import KvPool

QUERIES = 16
SPAN = 256


@dataclass(frozen=True, slots=True)
class Block:
    """Queries of one row that are computed in one call."""

    slot: int
    first: int
    """Position of the block's first place."""
    begin: int
    end: int
    """Positions of the queries that the step has."""
    token: int
    """Index of the block's first query in the token columns."""
    row_begin: int
    """Position of the row's first new token."""
    row_end: int
    """Keys of the row."""


class InvariantMetadata:
    """The blocks of a step, computed once for all layers. For each span of keys: its KV slots, and a mask of the
    queries that see them.
    """

    def __init__(self, blocks: list[Block], pages: PageReader) -> None:
        self.blocks = blocks
        self._pages = pages
        self._slots: dict[tuple[int, int, Reach], Tensor] = {}
        self._masks: dict[tuple[int, int, Reach], Tensor | None] = {}

    def spans(self, block: Block, reach: Reach) -> range:
        """Returns the spans that hold keys which some query of the block may see."""
        return range(_first(reach, block.begin) // SPAN, -(-block.end // SPAN))

    def slots(self, block: Block, span: int, reach: Reach) -> Tensor:
        """Returns [SPAN] KV slots; slot 0 past the row's end, and where the window has passed before the step."""
        found = self._slots.get((block.slot, span, reach))
        if found is None:
            positions = np.arange(span * SPAN, (span + 1) * SPAN)
            found = self._pages.kv_slots(np.array([block.slot]), positions[None]).squeeze(0)
            found[max(0, block.row_end - span * SPAN) :] = 0
            found[: max(0, _first(reach, block.row_begin) - span * SPAN)] = 0
            self._slots[block.slot, span, reach] = found
        return found

    def mask(self, block: Block, span: int, reach: Reach) -> Tensor | None:
        """Returns the mask to add to the scores, [QUERIES, 1, SPAN]; None if every query sees every key."""
        key = (block.first, span, reach)
        if key not in self._masks:
            queries, keys = block.first + np.arange(QUERIES), np.arange(span * SPAN, (span + 1) * SPAN)
            visible = (keys <= queries[:, None]) & (keys >= reach.firsts(queries)[:, None])
            hidden = torch.from_numpy(~visible[:, None])
            zeros = torch.zeros(hidden.shape)
            self._masks[key] = None if visible.all() else zeros.masked_fill_(hidden, float("-inf"))
        return self._masks[key]


class InvariantTorchBackend:
    """Deterministic attention with torch, computed in float32."""

    def __init__(self, pool: KvPool, page_table: Tensor) -> None:
        self.kv_pool = pool
        self._page_table = page_table

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return InvariantMetadata(list(blocks_of(batch.host)), PageReader(self._page_table, self.kv_pool.page_size))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        metadata = batch.attn_metadata
        assert isinstance(metadata, InvariantMetadata)
        keys, values = self.kv_pool.slots(spec.layer_id)
        spec = self.kv_pool.over_stored(spec)
        out = torch.empty(len(q), spec.num_heads * spec.value_dim, dtype=q.dtype)
        for block in metadata.blocks:
            tokens = slice(block.token, block.token + block.end - block.begin)
            out[tokens] = _attend(q[tokens], keys, values, spec, block, metadata)
        return out


def _first(reach: Reach, position: int) -> int:
    """Returns the position of the first key that a query sees."""
    return int(reach.firsts(np.array([position]))[0])


def blocks_of(host: ModelWorkerBatch) -> Iterator[Block]:
    """Yields the blocks of all rows, in their order."""
    token = 0
    rows = zip(host.slots.tolist(), host.seq_lens.tolist(), host.extend_lens.tolist(), strict=True)
    for slot, end, new in rows:
        for first in range((end - new) // QUERIES * QUERIES, end, QUERIES):
            begin, stop = max(first, end - new), min(first + QUERIES, end)
            yield Block(slot, first, begin, stop, token, end - new, end)
            token += stop - begin


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec, block: Block, metadata: InvariantMetadata
) -> Tensor:
    """Returns the queries of a block: [n, num_heads * head_dim] -> [n, num_heads * value_dim]."""
    heads, dim, group = spec.num_kv_heads, spec.head_dim, spec.num_heads // spec.num_kv_heads
    place = block.begin - block.first
    padded = torch.zeros(QUERIES, heads, group, dim)
    padded[place : place + len(q)] = q.view(len(q), heads, group, dim)
    # The query heads that share a KV head are more queries of that head.
    queries = padded.transpose(0, 1).reshape(heads, QUERIES * group, dim)
    if spec.sinks is None:
        highest = torch.full((heads, QUERIES * group, 1), float("-inf"))
        total = torch.zeros(heads, QUERIES * group, 1)
    else:
        # A sink acts like a first key with that score and the value zero.
        highest = spec.sinks.view(heads, 1, group, 1).expand(-1, QUERIES, -1, -1).reshape(heads, QUERIES * group, 1)
        total = torch.ones(heads, QUERIES * group, 1)
    attended = torch.zeros(heads, QUERIES * group, spec.value_dim)
    for span in metadata.spans(block, spec.reach):
        at = metadata.slots(block, span, spec.reach)
        k = keys.index_select(0, at).float().permute(1, 2, 0).contiguous()
        v = values.index_select(0, at).float().transpose(0, 1).contiguous()
        scores = torch.bmm(queries, k).mul_(spec.scale)
        if spec.logit_cap:
            scores = torch.tanh(scores / spec.logit_cap).mul_(spec.logit_cap)
        mask = metadata.mask(block, span, spec.reach)
        if mask is not None:
            scores.view(heads, QUERIES, group, SPAN).add_(mask)
        top = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        # A query that has seen no key yet would compare -inf with -inf.
        base = top.masked_fill(top == float("-inf"), 0.0)
        weights = scores.sub_(base).exp_()
        shrink = highest.sub_(base).exp_()
        total = total.mul_(shrink).add_(weights.sum(dim=-1, keepdim=True))
        attended = attended.mul_(shrink).add_(torch.bmm(weights, v))
        highest = top
    out = (attended / total * spec.value_scale).view(heads, QUERIES, group, spec.value_dim).transpose(0, 1)
    return out[place : place + len(q)].reshape(len(q), -1).to(q.dtype)
