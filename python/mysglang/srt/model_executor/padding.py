"""Steps of padding rows only: they write KV slot 0 and read page 0, and belong to no request.

For what must be run before there are requests: capturing graphs, and compiling kernels before somebody waits for them.
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import ModelWorkerBatch, SamplingColumns
from mysglang.srt.sampling.sampling_params import TOP_K_ALL


def padding_decode(size: int, slot: int) -> ModelWorkerBatch:
    """A greedy decode step of `size` rows of length 1."""
    zeros, ones = np.zeros(size, dtype=np.int32), np.ones(size, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.DECODE,
        input_ids=zeros,
        slots=np.full(size, slot, dtype=np.int32),
        seq_lens=ones,
        extend_lens=ones,
        out_cache_loc=zeros,
        yields=np.ones(size, dtype=np.bool_),
        sampling=_columns(size, top_k=1),
    )


def padding_prompt(length: int, slot: int, *, top_k: int = 1) -> ModelWorkerBatch:
    """A prompt of one row that yields a token; greedy, or drawn from the top_k (TOP_K_ALL: from all)."""
    zeros = np.zeros(length, dtype=np.int32)
    return ModelWorkerBatch(
        mode=ForwardMode.EXTEND,
        input_ids=zeros,
        slots=np.array([slot], dtype=np.int32),
        seq_lens=np.array([length], dtype=np.int32),
        extend_lens=np.array([length], dtype=np.int32),
        out_cache_loc=zeros,
        yields=np.ones(1, dtype=np.bool_),
        sampling=_columns(1, top_k=top_k),
    )


def _columns(size: int, *, top_k: int) -> SamplingColumns:
    ones = np.ones(size, dtype=np.float32)
    return SamplingColumns(
        temperature=ones,
        top_p=ones,
        top_k=np.full(size, top_k, dtype=np.int32),
        min_p=np.zeros(size, dtype=np.float32),
        seeds=np.zeros(size, dtype=np.int64),
        all_greedy=top_k == 1,
        any_top_p=False,
        any_top_k=top_k < TOP_K_ALL,
        any_min_p=False,
    )
