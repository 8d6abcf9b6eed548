"""The tail of a step: the last token of each row, which alone goes through the last layer and to the logits.

    layers 0 … n-2     all tokens
    layer n-1          keys and values of all tokens; queries, output and MLP of the last token of each row

Such a token attends over what is stored, so for the attention backend it is a decode step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch, Tail
from mysglang.srt.forward.worker_batch import ForwardMode, ModelWorkerBatch


def tail_of(batch: ForwardBatch, tokens: Tensor) -> Tail:
    """The tail of a step whose rows end with these tokens ([R] int64), with its attention planned."""
    step = replace(
        batch,
        mode=ForwardMode.DECODE,
        host=last_tokens_of(batch.host),
        input_ids=batch.input_ids.index_select(0, tokens),
        positions=batch.positions.index_select(0, tokens),
        extend_lens=torch.ones_like(batch.extend_lens),
        out_cache_locs=tuple(locs.index_select(0, tokens) for locs in batch.out_cache_locs),
        attn_metadata=None,
        expanded=None,
    )
    step.attn_metadata = batch.attn_backend.plan(step)
    return Tail(tokens, step)


def last_tokens_of(batch: ModelWorkerBatch) -> ModelWorkerBatch:
    """The step with the last token of each row alone."""
    last = np.cumsum(batch.extend_lens) - 1
    return replace(
        batch,
        mode=ForwardMode.DECODE,
        input_ids=batch.input_ids[last],
        extend_lens=np.ones_like(batch.extend_lens),
        out_cache_locs=tuple(locs[last] for locs in batch.out_cache_locs),
    )
