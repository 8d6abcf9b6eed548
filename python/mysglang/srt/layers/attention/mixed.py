"""Steps in which rows decode beside prompts: their attention in two parts, each as a step of its own.

    rows    | prompts and chunks | rows of one token, at the end |
              a step of prompts    a decode step

Kernels for prompts take a tile of queries at a time, of which a decoding row fills one; kernels for decode steps read a
row's keys once for all heads that share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.forward.worker_batch import ForwardMode, ModelWorkerBatch

WORTH_A_PART = 8
"""Decoding rows for which kernels of their own are worth their start."""


@dataclass(frozen=True, slots=True)
class MixedMetadata:
    """The two parts, each planned by its backend."""

    prompts: ForwardBatch
    decoding: ForwardBatch


def decoding_rows(batch: ModelWorkerBatch) -> int:
    """Returns how many rows at the end of a step with prompts have one new token; 0 if they are too few for a part."""
    several = np.flatnonzero(batch.extend_lens > 1)
    count = 0 if not len(several) else batch.num_rows - int(several[-1]) - 1
    return count if count >= WORTH_A_PART else 0


def parted(batch: ForwardBatch, decoding: int) -> tuple[ForwardBatch, ForwardBatch]:
    """Returns two steps: the rows before the last `decoding` ones, and these as a decode step. Neither is planned."""
    tokens, rows = batch.host.num_tokens - decoding, batch.host.num_rows - decoding
    prompts, decode = host_parts(batch.host, decoding)
    return (
        _part(batch, prompts, slice(0, tokens), slice(0, rows)),
        _part(batch, decode, slice(tokens, None), slice(rows, None)),
    )


def host_parts(host: ModelWorkerBatch, decoding: int) -> tuple[ModelWorkerBatch, ModelWorkerBatch]:
    """Returns the columns of two steps: the rows before the last `decoding` ones, and these as a decode step."""
    tokens, rows = host.num_tokens - decoding, host.num_rows - decoding
    return (
        _host_part(host, slice(0, tokens), slice(0, rows), host.mode),
        _host_part(host, slice(tokens, None), slice(rows, None), ForwardMode.DECODE),
    )


def _host_part(host: ModelWorkerBatch, tokens: slice, rows: slice, mode: ForwardMode) -> ModelWorkerBatch:
    return replace(
        host,
        mode=mode,
        input_ids=host.input_ids[tokens],
        slots=host.slots[rows],
        seq_lens=host.seq_lens[rows],
        extend_lens=host.extend_lens[rows],
        out_cache_locs=tuple(locs[tokens] for locs in host.out_cache_locs),
        yields=host.yields[rows],
    )


def _part(batch: ForwardBatch, host: ModelWorkerBatch, tokens: slice, rows: slice) -> ForwardBatch:
    return replace(
        batch,
        mode=host.mode,
        host=host,
        input_ids=batch.input_ids[tokens],
        positions=batch.positions[tokens],
        slots=batch.slots[rows],
        seq_lens=batch.seq_lens[rows],
        extend_lens=batch.extend_lens[rows],
        out_cache_locs=tuple(locs[tokens] for locs in batch.out_cache_locs),
        attn_metadata=None,
        tail=None,
    )
