"""Sampler: logits -> next tokens. Penalties, biases and prohibitions first, then the choice, then what it looked like.

Knows rows and lines, no request. A row whose logits are not finite, or that cannot be sampled, gets token -1 and
disturbs no other.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from mysglang.srt.kernels import sampling
from mysglang.srt.kernels.bitmask import apply_token_bitmask
from mysglang.srt.layers.apart import sample_apart
from mysglang.srt.layers.logprobs import Logprobs, find_logprobs
from mysglang.srt.layers.sampling_step import Sampled, SamplingStep
from mysglang.srt.sampling.penalties import PenaltyTable
from mysglang.srt.sampling.sampling_tensors import SamplingTensors

logger = logging.getLogger(__name__)


class Sampler:
    """Chooses, and counts what it chose for penalised rows."""

    def __init__(self, penalties: PenaltyTable, *, reference: bool = False) -> None:
        """`reference`: choose in plain torch, sorting, instead of with the device's kernels."""
        self._penalties = penalties
        self._greedy = sampling.greedy_tokens.reference if reference else sampling.greedy_tokens
        self._draw = sampling.draw_tokens.reference if reference else sampling.draw_tokens
        self._mask = apply_token_bitmask.reference if reference else apply_token_bitmask

    def sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        """logits: [S, vocab] as the model gives them, left as they are. A row that cannot be sampled gets -1."""
        try:
            return self._sample(logits, step)
        except Exception:
            logger.exception("%d rows could not be sampled together; each is sampled by itself", len(logits))
            return sample_apart(self._sample, logits, step)

    def _sample(self, logits: Tensor, step: SamplingStep) -> Sampled:
        greedy = self._greedy(logits)
        if step.plain_greedy:
            return Sampled(greedy)
        broken = greedy < 0
        edited = self._edit(logits, step)
        for run in step.runs:
            broken[run.rows] |= edited.index_select(0, run.rows).amax(dim=-1).isnan()
        tokens = greedy if edited is logits else edited.argmax(dim=-1)
        drawing = step.tensors.drawing
        if drawing is not None:
            assert step.uniforms is not None
            filters = (drawing.top_k, drawing.top_p, drawing.min_p)
            drawn = self._draw(edited.float(), step.uniforms, drawing.temperature, *filters)
            tokens = torch.where(drawing.greedy, tokens, drawn)
        tokens = torch.where(broken, -1, tokens)
        logprobs = self._logprobs(edited, tokens, step)
        # Last: what fails before this has changed nothing.
        self._count(tokens, step.tensors)
        return Sampled(tokens, logprobs)

    def _edit(self, logits: Tensor, step: SamplingStep) -> Tensor:
        """A changed float32 copy, or the logits themselves if nothing changes them."""
        tensors = step.tensors
        parts = (tensors.penalties, tensors.bias, step.forbidden, step.mask)
        if all(part is None for part in parts) and not step.runs:
            return logits
        logits = logits.to(torch.float32, copy=True)
        if tensors.penalties is not None:
            self._penalties.apply(logits, tensors.penalties)
        if tensors.bias is not None:
            tensors.bias.apply(logits)
        for run in step.runs:
            run.apply(logits)
        if step.forbidden is not None:
            step.forbidden.apply(logits)
        if step.mask is not None:
            # Last: nothing that is added to a logit brings back what the mask forbids.
            self._mask(logits, step.mask.rows, step.mask.bits)
        return logits

    def _count(self, tokens: Tensor, tensors: SamplingTensors) -> None:
        penalties = tensors.penalties
        if penalties is not None:
            self._penalties.count(penalties.lines, tokens.index_select(0, penalties.rows))

    def _logprobs(self, logits: Tensor, tokens: Tensor, step: SamplingStep) -> Logprobs | None:
        """Of the distribution after temperature, before the filters."""
        wanted = step.output_query
        if wanted is None:
            return None
        drawing = step.tensors.drawing

        def scaled(begin: int, end: int) -> Tensor:
            rows = wanted.rows[begin:end]
            found = logits.index_select(0, rows).float()
            return found if drawing is None else found / drawing.temperature.index_select(0, rows)[:, None]

        chosen = tokens.index_select(0, wanted.rows).clamp(min=0)
        return find_logprobs(scaled, chosen, wanted.query, logits.shape[1])
