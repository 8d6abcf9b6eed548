"""Sampler: logits -> next tokens. Features change the logits, then tokens are chosen, then log-probabilities are
computed.

Knows rows, no request and no feature. A row whose logits are not finite, or that cannot be sampled, gets token -1 and
disturbs no other: if sampling all rows together fails, each is sampled by itself (`sample_apart`). With several ranks,
the first one chooses, and sends its tokens to the others. Rows are those of the logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.distributed.groups import Group
from mysglang.srt.forward.outputs import NO_TOKEN, NOT_FINITE
from mysglang.srt.kernels import sampling
from mysglang.srt.kernels.sampling import apply_token_bitmask
from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs, find_logprobs, join_logprobs
from mysglang.srt.sampling.feature import Act, Stage, places
from mysglang.srt.utils.words import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputQuery:
    """Rows of the logits whose sampled token's log-probability is wanted: [N] int64."""

    rows: Tensor
    query: LogprobQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStep:
    """The work of the sampler in one step."""

    acts: tuple[Act, ...] = ()
    """Acts of the features in use, in the order of their stages."""
    output_query: OutputQuery | None = None

    @property
    def plain_greedy(self) -> bool:
        """True if the tokens are those of `greedy_tokens` on the bare logits, and nothing else is wanted."""
        return not self.acts and self.output_query is None

    def then(self, late: tuple[Act, ...]) -> SamplingStep:
        """Returns this step with the values that are known only after the forward pass."""
        return replace(self, acts=tuple(sorted((*self.acts, *late), key=lambda act: act.stage)))


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens. tokens: [S] int64; NOT_FINITE in a broken row, NO_TOKEN where all are forbidden."""

    tokens: Tensor
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class SamplingOps:
    """The ops that choose tokens."""

    greedy: Callable[[Tensor], Tensor]
    draw: Callable[..., Tensor]
    mask: Callable[[Tensor, Tensor, Tensor], None]

    @classmethod
    def choose(cls, *, reference: bool = False) -> SamplingOps:
        """Returns the device's sampling operations, or those in plain torch, which sort."""
        if reference:
            greedy, draw = sampling.greedy_tokens.reference, sampling.draw_tokens.reference
            return cls(greedy, draw, apply_token_bitmask.reference)
        return cls(sampling.greedy_tokens, sampling.draw_tokens, apply_token_bitmask)


class ChoosesTokens(Protocol):
    """Chooses tokens from logits."""

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        """Samples tokens. logits: [S, vocab] as the model computes them; they are not changed. A row that cannot be
        sampled gets a negative token.
        """
        ...


class SharedSampler:
    """A sampler whose choice is the same on all ranks: the first rank's. The other ranks get its tokens, and no
    log-probabilities.

    All ranks have the same logits, but ranks must never differ in a token: their plans would differ from then on. So
    agreement rests on one small broadcast, and not on draws, masks and processors that run alike everywhere.
    """

    def __init__(self, inner: ChoosesTokens, tp: Group) -> None:
        self._inner = inner
        self._tp = tp

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        if self._tp.rank:
            return Sampled(self._tp.broadcast(torch.empty(len(logits), dtype=torch.int64, device=logits.device)))
        sampled = self._inner.sample(logits, step)
        return replace(sampled, tokens=self._tp.broadcast(sampled.tokens))


class Sampler:
    """Samples tokens by applying the features in use, in the order of their stages."""

    def __init__(self, ops: SamplingOps) -> None:
        self._greedy = ops.greedy

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        try:
            return self._sample(logits, step)
        except Exception:
            rows = counted(len(logits), "request")
            logger.exception("%s could not be sampled in one go, so each is now sampled alone.", rows)
            return sample_apart(self._sample, logits, step)

    def _sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        tokens = self._greedy(logits)
        if step.plain_greedy:
            return Sampled(tokens)
        broken = tokens < 0
        empty = torch.zeros_like(broken)
        if any(act.stage < Stage.CHOOSE for act in step.acts):
            logits = logits.to(torch.float32, copy=True)
            for act in step.acts:
                act.edit(logits, broken)
            tokens = logits.argmax(dim=-1)
            # After all edits: a token may be forbidden by a processor, and the rest by a mask.
            empty = logits.gather(1, tokens[:, None]).squeeze(1) == -torch.inf
        for act in step.acts:
            tokens = act.choose(logits, tokens)
        tokens = torch.where(broken, NOT_FINITE, torch.where(empty, NO_TOKEN, tokens))
        logprobs = self._logprobs(logits, tokens, step)
        # Last: what fails before this has changed nothing.
        for act in step.acts:
            act.chosen(tokens)
        return Sampled(tokens, logprobs)

    def _logprobs(self, logits: Tensor, tokens: Tensor, step: SamplingStep) -> Logprobs | None:
        """Returns the log-probabilities of the distribution after temperature, before the filters."""
        wanted = step.output_query
        if wanted is None:
            return None

        def scaled(begin: int, end: int) -> Tensor:
            rows = wanted.rows[begin:end]
            found = logits.index_select(0, rows).float()
            for act in step.acts:
                found = act.scale(found, rows)
            return found

        chosen = tokens.index_select(0, wanted.rows).clamp(min=0)
        return find_logprobs(scaled, chosen, wanted.query, logits.shape[1])


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
        logger.exception("A request could not be sampled and ends with an error; others are not affected.")
    tokens = torch.full((1,), NOT_FINITE, dtype=torch.int64, device=logits.device)
    if step.output_query is None:
        return Sampled(tokens)
    query = step.output_query.query
    # These values are not read: the request ends.
    values = logits.new_zeros(1, min(query.top, logits.shape[1]), dtype=torch.float32)
    pairs = values.new_zeros(len(query.pair_ids))
    return Sampled(tokens, Logprobs(values.new_zeros(1), values, values.to(torch.int32), pairs))


def _rows(step: SamplingStep, count: int) -> Iterator[SamplingStep]:
    """Yields one sampling step for each row."""
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
