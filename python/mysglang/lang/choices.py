"""How `select` decides between choices, from the log-probabilities of their tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Logprobs = Sequence[Sequence[Any]]
"""A row (log-probability, token id, text) for each token of a choice; the log-probability of a first token is None."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Measurements of the choices by a backend. All lists have one entry for each choice."""

    choices: Sequence[str]
    normalized_prompt_logprobs: Sequence[float]
    """The mean log-probability of a choice's tokens."""
    input_token_logprobs: Sequence[Logprobs]
    output_token_logprobs: Sequence[Logprobs]
    unconditional_token_logprobs: Sequence[Logprobs] | None = None
    """Log-probabilities of the same tokens without the text before them; only for methods that require them."""

    def meta_info(self) -> dict[str, Any]:
        return {
            "normalized_prompt_logprobs": list(self.normalized_prompt_logprobs),
            "input_token_logprobs": list(self.input_token_logprobs),
            "output_token_logprobs": list(self.output_token_logprobs),
        }


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The choice that was taken, and why."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


class ChoicesSamplingMethod(ABC):
    """A way to decide. Equal scores fall to the first of the choices."""

    requires_unconditional_logprobs: ClassVar[bool] = False

    @abstractmethod
    def decide(self, scored: Scored) -> ChoicesDecision:
        """Returns the choice that this method prefers."""


class TokenLengthNormalized(ChoicesSamplingMethod):
    """Takes the choice with the highest mean log-probability of its tokens."""

    def decide(self, scored: Scored) -> ChoicesDecision:
        best = _first_best(scored.normalized_prompt_logprobs)
        return ChoicesDecision(scored.choices[best], scored.meta_info())


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Compares the choices token by token, as greedy decoding would: the likeliest next token wins.

    A choice that ended is continued with its own mean, so that "play" can be compared with "player".
    """

    def decide(self, scored: Scored) -> ChoicesDecision:
        longest = max(len(tokens) for tokens in scored.input_token_logprobs)
        matrix = [_padded(tokens, longest) for tokens in scored.input_token_logprobs]
        left = list(range(len(matrix)))
        for place in range(longest):
            best = max(matrix[choice][place] for choice in left)
            left = [choice for choice in left if matrix[choice][place] == best]
        return ChoicesDecision(scored.choices[left[0]], {**scored.meta_info(), "greedy_logprob_matrix": matrix})


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """Takes the choice whose tokens become most likely, on average, because of the text before them.

    So a choice that is likely after any text, such as a common word, has no advantage.
    """

    requires_unconditional_logprobs = True

    def decide(self, scored: Scored) -> ChoicesDecision:
        if scored.unconditional_token_logprobs is None:
            raise ValueError("this choices_method needs log-probabilities without the prompt; the backend has none.")
        gains = [
            _mean(a - b for a, b in zip(_values(given), _values(alone), strict=True))
            for given, alone in zip(scored.input_token_logprobs, scored.unconditional_token_logprobs, strict=True)
        ]
        return ChoicesDecision(
            scored.choices[_first_best(gains)],
            {
                **scored.meta_info(),
                "unconditional_token_logprobs": list(scored.unconditional_token_logprobs),
                "normalized_unconditional_prompt_logprobs": gains,
            },
        )


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def mean_logprob(tokens: Logprobs) -> float:
    """Returns the mean over those tokens that have a log-probability; minus infinity if none has one."""
    found = [float(token[0]) for token in tokens if token[0] is not None]
    return _mean(found) if found else -math.inf


def _values(tokens: Logprobs) -> list[float]:
    """Returns the log-probability of each token; 0 for the first token of a text, which has none."""
    return [0.0 if token[0] is None else float(token[0]) for token in tokens]


def _padded(tokens: Logprobs, length: int) -> list[float]:
    values = _values(tokens)
    mean = _mean(values) if values else -math.inf
    return values + [mean] * (length - len(values))


def _first_best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
