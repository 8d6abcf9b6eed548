"""Sampler: logits -> next tokens. Features change the logits, then tokens are chosen, then log-probabilities are
computed.

Knows rows, no request and no feature. A row whose logits are not finite, or that cannot be sampled, gets token -1 and
disturbs no other. Of several ranks the first one chooses, and the others are told its tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from mysglang.srt.distributed.groups import Group
from mysglang.srt.kernels import sampling
from mysglang.srt.kernels.sampling import apply_token_bitmask
from mysglang.srt.layers.apart import sample_apart
from mysglang.srt.layers.logprobs import Logprobs, find_logprobs
from mysglang.srt.layers.sampling_step import Sampled, SamplingStep
from mysglang.srt.sampling.feature import Stage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingOps:
    """The kernels that tokens are chosen with."""

    greedy: Callable[[Tensor], Tensor]
    draw: Callable[..., Tensor]
    mask: Callable[[Tensor, Tensor, Tensor], None]

    @classmethod
    def choose(cls, *, reference: bool = False) -> SamplingOps:
        """The device's, or plain torch, which sorts."""
        if reference:
            greedy, draw = sampling.greedy_tokens.reference, sampling.draw_tokens.reference
            return cls(greedy, draw, apply_token_bitmask.reference)
        return cls(sampling.greedy_tokens, sampling.draw_tokens, apply_token_bitmask)


class ChoosesTokens(Protocol):
    """Chooses tokens from logits."""

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        """logits: [S, vocab] as the model gives them, left as they are. A row that cannot be sampled gets -1."""
        ...


class SharedSampler:
    """One choice for all ranks: the first rank's. The other ranks get its tokens, and no log-probabilities.

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
    """Goes through what the features in use do."""

    def __init__(self, ops: SamplingOps) -> None:
        self._greedy = ops.greedy

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        try:
            return self._sample(logits, step)
        except Exception:
            logger.exception("%d rows could not be sampled together; each is sampled by itself", len(logits))
            return sample_apart(self._sample, logits, step)

    def _sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        tokens = self._greedy(logits)
        if step.plain_greedy:
            return Sampled(tokens)
        broken = tokens < 0
        if any(act.stage < Stage.CHOOSE for act in step.acts):
            logits = logits.to(torch.float32, copy=True)
            for act in step.acts:
                act.edit(logits, broken)
            tokens = logits.argmax(dim=-1)
        for act in step.acts:
            tokens = act.choose(logits, tokens)
        tokens = torch.where(broken, -1, tokens)
        logprobs = self._logprobs(logits, tokens, step)
        # Last: what fails before this has changed nothing.
        for act in step.acts:
            act.chosen(tokens)
        return Sampled(tokens, logprobs)

    def _logprobs(self, logits: Tensor, tokens: Tensor, step: SamplingStep) -> Logprobs | None:
        """Log-probabilities of the distribution after temperature, before the filters."""
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
