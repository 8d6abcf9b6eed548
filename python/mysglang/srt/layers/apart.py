"""Sampling row by row: for a step in which sampling all rows together failed. A row that fails alone gets token -1.

Slower than sampling together, and needed only after an exception, such as one for want of memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs, join_logprobs
from mysglang.srt.layers.sampling_step import OutputQuery, Sampled, SamplingStep
from mysglang.srt.sampling.feature import places

logger = logging.getLogger(__name__)

Sample = Callable[[Tensor, SamplingStep], Sampled]


def sample_apart(sample: Sample, logits: Tensor, step: SamplingStep) -> Sampled:
    """Calls `sample` on each row of `logits` [S, vocab] alone. Raises the errors that mean that the device is lost."""
    parts = [_sample_one(sample, logits[row : row + 1], alone) for row, alone in enumerate(_rows(step, len(logits)))]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return Sampled(torch.cat([part.tokens for part in parts]), join_logprobs(logprobs) if logprobs else None)


def _sample_one(sample: Sample, logits: Tensor, step: SamplingStep) -> Sampled:
    try:
        return sample(logits, step)
    except Exception:
        logger.exception("a request could not be sampled, and ends by that")
    tokens = torch.full((1,), -1, dtype=torch.int64, device=logits.device)
    if step.output_query is None:
        return Sampled(tokens)
    query = step.output_query.query
    # These values are not read: the request ends.
    values = logits.new_zeros(1, min(query.top, logits.shape[1]), dtype=torch.float32)
    pairs = values.new_zeros(len(query.pair_ids))
    return Sampled(tokens, Logprobs(values.new_zeros(1), values, values.to(torch.int32), pairs))


def _rows(step: SamplingStep, count: int) -> Iterator[SamplingStep]:
    """The step of each row alone."""
    for row in range(count):
        acts = tuple(act for whole in step.acts if (act := whole.alone(row)))
        yield SamplingStep(acts=acts, output_query=_query(step.output_query, row))


def _query(wanted: OutputQuery | None, row: int) -> OutputQuery | None:
    if wanted is None or not len(at := places(wanted.rows, row)):
        return None
    place, query = int(at[0]), wanted.query
    begin, end = int(query.pair_ends[place]), int(query.pair_ends[place + 1])
    ids = query.pair_ids[begin:end]
    ends = np.asarray([0, end - begin], dtype=np.int64)
    return OutputQuery(torch.zeros_like(at), LogprobQuery(query.top, ends, torch.zeros_like(ids), ids))
