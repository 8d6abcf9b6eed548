"""Sampling row by row: for a step in which sampling all rows together failed. A row that fails alone gets token -1.

Slower than sampling together, and needed only after an exception, such as one for want of memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs, join_logprobs
from mysglang.srt.layers.sampling_step import OutputQuery, Sampled, SamplingStep
from mysglang.srt.sampling.penalties import Penalties
from mysglang.srt.sampling.sampling_tensors import Bitmask, Drawing, Edits, SamplingTensors

logger = logging.getLogger(__name__)

Sample = Callable[[Tensor, SamplingStep], Sampled]


def sample_apart(sample: Sample, logits: Tensor, step: SamplingStep) -> Sampled:
    """What `sample` makes of each row of `logits` [S, vocab] alone. Raises what a device raises that is lost."""
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
    # Nobody reads them: the request ends.
    values = logits.new_zeros(1, min(query.top, logits.shape[1]), dtype=torch.float32)
    pairs = values.new_zeros(len(query.pair_ids))
    return Sampled(tokens, Logprobs(values.new_zeros(1), values, values.to(torch.int32), pairs))


def _rows(step: SamplingStep, count: int) -> Iterator[SamplingStep]:
    """The step of each row alone."""
    for row in range(count):
        yield SamplingStep(
            tensors=SamplingTensors(
                _drawing(step.tensors.drawing, row),
                _penalties(step.tensors.penalties, row),
                _edits(step.tensors.bias, row),
            ),
            uniforms=None if step.uniforms is None else step.uniforms[row : row + 1],
            forbidden=_edits(step.forbidden, row),
            runs=tuple(
                replace(run, rows=torch.zeros_like(run.rows[:1]), params=[run.params[place]])
                for run in step.runs
                for place in _places(run.rows, row).tolist()
            ),
            mask=_mask(step.mask, row),
            output_query=_query(step.output_query, row),
        )


def _places(rows: Tensor, row: int) -> Tensor:
    """Where `row` stands in `rows`."""
    return (rows == row).nonzero().squeeze(1)


def _drawing(drawing: Drawing | None, row: int) -> Drawing | None:
    if drawing is None:
        return None

    def one(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[row : row + 1]

    return Drawing(
        temperature=drawing.temperature[row : row + 1],
        greedy=drawing.greedy[row : row + 1],
        top_k=one(drawing.top_k),
        top_p=one(drawing.top_p),
        min_p=one(drawing.min_p),
    )


def _penalties(penalties: Penalties | None, row: int) -> Penalties | None:
    if penalties is None or not len(at := _places(penalties.rows, row)):
        return None
    strengths = (penalties.frequency[at], penalties.presence[at], penalties.repetition[at])
    return Penalties(torch.zeros_like(at), penalties.lines[at], *strengths)


def _edits(edits: Edits | None, row: int) -> Edits | None:
    if edits is None or not len(at := _places(edits.rows, row)):
        return None
    return Edits(torch.zeros_like(at), edits.ids[at], edits.values[at])


def _mask(mask: Bitmask | None, row: int) -> Bitmask | None:
    if mask is None or not len(at := _places(mask.rows, row)):
        return None
    return Bitmask(torch.zeros_like(at), mask.bits[at])


def _query(wanted: OutputQuery | None, row: int) -> OutputQuery | None:
    if wanted is None or not len(at := _places(wanted.rows, row)):
        return None
    place, query = int(at[0]), wanted.query
    begin, end = int(query.pair_ends[place]), int(query.pair_ends[place + 1])
    ids = query.pair_ids[begin:end]
    ends = np.asarray([0, end - begin], dtype=np.int64)
    return OutputQuery(torch.zeros_like(at), LogprobQuery(query.top, ends, torch.zeros_like(ids), ids))
