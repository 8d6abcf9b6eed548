"""Rows of a step that attend by themselves, and the other rows as a step of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch, LoneRow, Tail
from mysglang.srt.forward.worker_batch import ForwardMode, Longs
from mysglang.srt.layers.attention.page_reader import PageReader
from mysglang.srt.platforms.upload import to_device


def lone_rows(batch: ForwardBatch, rows: Longs, pages: PageReader) -> tuple[LoneRow, ...]:
    """Returns these rows of the step, with the KV slots of all of their tokens."""
    host = batch.host
    ends = np.cumsum(host.extend_lens)

    def lone(row: int) -> LoneRow:
        positions = np.arange(host.seq_lens[row], dtype=np.int64)[None]
        keys = pages.kv_slots(host.slots[row : row + 1].astype(np.int64), positions).squeeze(0)
        return LoneRow(slice(int(ends[row] - host.extend_lens[row]), int(ends[row])), keys)

    return tuple(map(lone, rows.tolist()))


def rows_alone(batch: ForwardBatch, rows: Longs, plan: Callable[[ForwardBatch], AttentionMetadata]) -> Tail:
    """Returns the tokens of these rows, and the step with them alone, planned by `plan`: a decode step if each row has
    one new token.
    """
    host, device = batch.host, batch.input_ids.device
    tokens = np.flatnonzero(np.isin(np.repeat(np.arange(host.num_rows), host.extend_lens), rows))
    at, of = to_device(tokens, device), to_device(rows, device)
    mode = ForwardMode.DECODE if (host.extend_lens[rows] == 1).all() else batch.mode
    step = replace(
        batch,
        mode=mode,
        host=replace(
            host,
            mode=mode,
            input_ids=host.input_ids[tokens],
            slots=host.slots[rows],
            seq_lens=host.seq_lens[rows],
            extend_lens=host.extend_lens[rows],
            out_cache_locs=tuple(locs[tokens] for locs in host.out_cache_locs),
            yields=host.yields[rows],
            shared=None,
            prompt_prefixes=None,
        ),
        input_ids=batch.input_ids.index_select(0, at),
        positions=batch.positions.index_select(0, at),
        slots=batch.slots.index_select(0, of),
        seq_lens=batch.seq_lens.index_select(0, of),
        extend_lens=batch.extend_lens.index_select(0, of),
        out_cache_locs=tuple(locs.index_select(0, at) for locs in batch.out_cache_locs),
        attn_metadata=None,
        tail=None,
    )
    step.attn_metadata = plan(step)
    return Tail(at, step)
