"""SamplingStep and Sampled: what a step wants of the sampler, and what it gets. Rows are those of the logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs
from mysglang.srt.sampling.feature import Act


@dataclass(frozen=True, slots=True)
class OutputQuery:
    """Rows of the logits whose sampled token's log-probability is wanted: [N] int64."""

    rows: Tensor
    query: LogprobQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStep:
    """One step's sampling."""

    acts: tuple[Act, ...] = ()
    """Acts of the features in use, in the order of their stages."""
    output_query: OutputQuery | None = None

    @property
    def plain_greedy(self) -> bool:
        """True if the tokens are those of `greedy_tokens` on the bare logits, and nothing else is wanted."""
        return not self.acts and self.output_query is None

    def then(self, late: tuple[Act, ...]) -> SamplingStep:
        """This step with the values that are known only after the forward pass."""
        return replace(self, acts=tuple(sorted((*self.acts, *late), key=lambda act: act.stage)))


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: [S] int64, -1 for a broken row."""

    tokens: Tensor
    logprobs: Logprobs | None = None
