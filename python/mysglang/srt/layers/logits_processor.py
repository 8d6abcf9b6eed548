"""LogitsProcessor: from hidden states to the logits that a step wants, and the log-probabilities of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mysglang.srt.layers.logprobs import LogprobQuery, Logprobs, find_logprobs


@dataclass(frozen=True, slots=True)
class PromptQuery:
    """Prompt tokens whose log-probability is wanted; [N] int64 each."""

    positions: Tensor
    """Indices of the step's tokens whose logits predict them."""
    targets: Tensor
    """The prompt tokens themselves."""
    query: LogprobQuery


class MakesLogits(Protocol):
    """The last part of a model: from the hidden states of a step's tokens, [N, hidden], to logits or vectors."""

    def next_token_logits(self, hidden: Tensor, rows: Tensor | None) -> Tensor:
        """Returns the logits of the given tokens, or of all: [S, vocab]."""
        ...

    def prompt_logprobs(self, hidden: Tensor, prompt: PromptQuery) -> Logprobs:
        """Returns the log-probabilities of prompt tokens under the plain distribution, without temperature and
        penalties.
        """
        ...


class LogitsProcessor:
    """Holds the model's projection from hidden states [N, hidden] to logits [N, vocab]."""

    def __init__(self, compute_logits: Callable[[Tensor], Tensor], vocab_size: int) -> None:
        self._compute_logits = compute_logits
        self._vocab_size = vocab_size

    def next_token_logits(self, hidden: Tensor, rows: Tensor | None) -> Tensor:
        """Returns the logits of the given tokens, or of all: [S, vocab]."""
        return self._compute_logits(hidden if rows is None else hidden.index_select(0, rows))

    def prompt_logprobs(self, hidden: Tensor, prompt: PromptQuery) -> Logprobs:
        """Returns the log-probabilities of prompt tokens under the plain distribution, without temperature and
        penalties.
        """

        def logits_of(begin: int, end: int) -> Tensor:
            return self._compute_logits(hidden.index_select(0, prompt.positions[begin:end]))

        return find_logprobs(logits_of, prompt.targets, prompt.query, self._vocab_size)
