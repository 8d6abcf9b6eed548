"""SamplingStep and Sampled: what a step wants of the sampler, and what it gets. Rows are those of the logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs
from mysglang.srt.sampling.logit_processors import ProcessorRun
from mysglang.srt.sampling.sampling_tensors import Bitmask, Edits, SamplingTensors


@dataclass(frozen=True, slots=True)
class OutputQuery:
    """Rows of the logits whose sampled token's log-probability is wanted: [N] int64."""

    rows: Tensor
    query: LogprobQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStep:
    """One step's sampling."""

    tensors: SamplingTensors
    uniforms: Tensor | None = None
    """[S] float64 in [0, 1); None if every row is greedy."""
    forbidden: Edits | None = None
    runs: tuple[ProcessorRun, ...] = ()
    """What logit processors do."""
    mask: Bitmask | None = None
    output_query: OutputQuery | None = None

    @property
    def plain_greedy(self) -> bool:
        """Whether the tokens are those of `greedy_tokens` on the bare logits, and nothing else is wanted."""
        tensors = self.tensors
        parts = (tensors.drawing, tensors.penalties, tensors.bias, self.forbidden, self.mask, self.output_query)
        return all(part is None for part in parts) and not self.runs


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: [S] int64, -1 for a broken row."""

    tokens: Tensor
    logprobs: Logprobs | None = None
