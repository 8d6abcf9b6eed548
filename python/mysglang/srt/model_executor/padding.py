"""Steps of padding rows only: they write KV slot 0 and read page 0 of each space, and belong to no request.

They serve work that runs before there are requests: capturing graphs, and compiling kernels before a client waits for
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.worker_batch import (
    DRAFTED,
    NO_STATE,
    ON_DEVICE,
    PLAIN_SAMPLING,
    ForwardMode,
    Ints,
    ModelWorkerBatch,
    SamplingColumns,
    StateColumns,
)
from mysglang.srt.sampling.drawing import TOP_K_ALL, one_drawing_row


def padding_decode(size: int, slot: int, *, spaces: int = 1, states: bool = False) -> ModelWorkerBatch:
    """Returns a greedy decode step of `size` rows of length 1, for a model with so many page spaces. `states`: as of
    `padding_prompt`.
    """
    zeros, ones = np.zeros(size, dtype=np.int32), np.ones(size, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.DECODE,
        input_ids=zeros,
        slots=np.full(size, slot, dtype=np.int32),
        seq_lens=ones,
        extend_lens=ones,
        out_cache_locs=(zeros,) * spaces,
        yields=np.ones(size, dtype=np.bool_),
        states=no_states(size) if states else None,
    )


def padding_drafts(width: int, slot: int, *, spaces: int = 1, prompt: int = 0, draws: bool = False) -> ModelWorkerBatch:
    """Returns a step of one row that tries width - 1 drafts of the device. A prompt of that length may be in the step
    too, or the row may draw its tokens.
    """
    ids = np.array([ON_DEVICE, *[DRAFTED] * (width - 1), *[0] * prompt], dtype=np.int32)
    lens = np.array([width, prompt][: 1 + (prompt > 0)], dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND if prompt else ForwardMode.DECODE,
        input_ids=ids,
        slots=np.full(len(lens), slot, dtype=np.int32),
        seq_lens=lens,
        extend_lens=lens,
        out_cache_locs=(np.zeros(len(ids), dtype=np.int32),) * spaces,
        yields=np.ones(len(lens), dtype=np.bool_),
        sampling=SamplingColumns((one_drawing_row(TOP_K_ALL),)) if draws else PLAIN_SAMPLING,
    )


def padding_room(rows: int, width: int, slot: int, *, spaces: int = 1) -> ModelWorkerBatch:
    """Returns a captured step of rows that each try width - 1 drafts, and whose lengths the host does not know."""
    ids = np.full((rows, width), DRAFTED, dtype=np.int32)
    ids[:, 0] = ON_DEVICE
    lens = np.full(rows, width, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND,
        input_ids=ids.reshape(-1),
        slots=np.full(rows, slot, dtype=np.int32),
        seq_lens=lens,
        extend_lens=lens,
        out_cache_locs=(np.zeros(rows * width, dtype=np.int32),) * spaces,
        yields=np.ones(rows, dtype=np.bool_),
        high_lens=lens,
    )


def mixed_padding(
    batch: ModelWorkerBatch, decoding: int, *, tokens: int, rows: int, room: int, slot: int
) -> ModelWorkerBatch:
    """Returns a step whose last `decoding` rows decode, padded to so many tokens and rows, of which the last `room`
    decode.

        rows    | prompts | all padding tokens | empty … | decoding | one token each … |

    Padding has the padding slot. Sampling columns and the like still count the rows of `batch`.
    """
    prompts, prompt_tokens = batch.num_rows - decoding, batch.num_tokens - decoding
    spare = tokens - room - prompt_tokens
    """Padding tokens of the prompts' part."""
    empty, more = rows - room - prompts, room - decoding
    assert spare >= 0 and empty > 0 and more >= 0

    def by_row(column: npt.NDArray[Any], first: int, others: int, behind: int) -> npt.NDArray[Any]:
        middle = np.full(empty, others, dtype=column.dtype)
        middle[0] = first
        ends = column[prompts:], np.full(more, behind, dtype=column.dtype)
        return np.concatenate([column[:prompts], middle, *ends])

    def by_token(column: Ints) -> Ints:
        zeros = np.zeros(spare, dtype=column.dtype), np.zeros(more, dtype=column.dtype)
        return np.concatenate([column[:prompt_tokens], zeros[0], column[prompt_tokens:], zeros[1]])

    return replace(
        batch,
        input_ids=by_token(batch.input_ids),
        slots=by_row(batch.slots, slot, slot, slot),
        seq_lens=by_row(batch.seq_lens, spare, 0, 1),
        extend_lens=by_row(batch.extend_lens, spare, 0, 1),
        out_cache_locs=tuple(map(by_token, batch.out_cache_locs)),
        yields=by_row(batch.yields, False, False, False),
        states=None
        if batch.states is None
        else replace(batch.states, slots=by_row(batch.states.slots, NO_STATE, NO_STATE, NO_STATE)),
    )


def no_states(rows: int, *, copies: int = 0, target: int = 0) -> StateColumns:
    """Returns state columns of that many rows without a state. `copies`: so many copies of zeros, all to the entry
    `target`.
    """
    sources, targets = np.full(copies, NO_STATE, dtype=np.int64), np.full(copies, target, dtype=np.int64)
    ints = np.zeros(0, dtype=np.int32)
    return StateColumns(np.full(rows, NO_STATE, dtype=np.int32), sources, targets, ints, ints, ints)


def padding_prompt(
    length: int, slot: int, *, top_k: int = 1, spaces: int = 1, states: bool = False, cached: int = 0
) -> ModelWorkerBatch:
    """Returns a prompt of one row that yields a token; greedy, or drawn from the top_k (TOP_K_ALL: from all). `states`:
    True for a model whose layers keep a state for each request. `cached`: tokens before it, which are not computed.
    """
    zeros = np.zeros(length, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND,
        input_ids=zeros,
        slots=np.array([slot], dtype=np.int32),
        seq_lens=np.array([cached + length], dtype=np.int32),
        extend_lens=np.array([length], dtype=np.int32),
        out_cache_locs=(zeros,) * spaces,
        yields=np.ones(1, dtype=np.bool_),
        states=no_states(1) if states else None,
        sampling=PLAIN_SAMPLING if top_k == 1 else SamplingColumns((one_drawing_row(top_k),)),
    )


def beside_one_token(prompt: ModelWorkerBatch) -> ModelWorkerBatch:
    """Returns a step of padding of one row, and before that row another one of a single token."""
    one = padding_prompt(1, int(prompt.slots[0]), spaces=len(prompt.out_cache_locs))
    return replace(
        prompt,
        input_ids=np.concatenate((one.input_ids, prompt.input_ids)),
        slots=np.concatenate((one.slots, prompt.slots)),
        seq_lens=np.concatenate((one.seq_lens, prompt.seq_lens)),
        extend_lens=np.concatenate((one.extend_lens, prompt.extend_lens)),
        yields=np.concatenate((one.yields, prompt.yields)),
        out_cache_locs=tuple(map(np.concatenate, zip(one.out_cache_locs, prompt.out_cache_locs, strict=True))),
        states=None if prompt.states is None else no_states(2),
    )
