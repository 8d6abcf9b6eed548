"""The methods of `select`, on log-probabilities written by hand."""

import pytest

from mysglang.lang.choices import (
    ChoicesSamplingMethod,
    Logprobs,
    Scored,
    greedy_token_selection,
    mean_logprob,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

CHOICES = ["organ", "organism", "antidepressant"]


def rows(*values: float | None) -> Logprobs:
    return [(value, 1, "x") for value in values]


def scored(given: list[Logprobs], alone: list[Logprobs] | None = None) -> Scored:
    means = [mean_logprob(tokens) for tokens in given]
    return Scored(CHOICES, means, given, [[] for _ in given], alone)


GIVEN = [rows(-0.1, -0.2), rows(-0.1, -0.2, -5.0), rows(-0.13, -0.13, -0.13)]
ALONE = [rows(None, -0.5), rows(None, -0.5, -4.0), rows(None, -8.0, -9.0)]


@pytest.mark.parametrize(
    ("method", "choice"),
    [
        # Means: -0.15, -1.77, -0.13.
        (token_length_normalized, "antidepressant"),
        # First tokens: -0.1, -0.1, -0.13; third: the mean -0.15 of the first choice against -5.
        (greedy_token_selection, "organ"),
        # Gains: (-0.1 + 0.3) / 2, (-0.1 + 0.3 - 1) / 3, (-0.13 + 7.87 + 8.87) / 3.
        (unconditional_likelihood_normalized, "antidepressant"),
    ],
)
def test_the_choice(method: ChoicesSamplingMethod, choice: str) -> None:
    decision = method.decide(scored(GIVEN, ALONE))
    assert decision.decision == choice
    assert decision.meta_info["input_token_logprobs"] == GIVEN


def test_a_common_word_has_no_advantage() -> None:
    given, alone = [rows(-1.0), rows(-1.1), rows(-9.0)], [rows(-1.0), rows(-7.0), rows(-9.0)]
    assert token_length_normalized.decide(scored(given)).decision == CHOICES[0]
    assert unconditional_likelihood_normalized.decide(scored(given, alone)).decision == CHOICES[1]


@pytest.mark.parametrize("method", [token_length_normalized, greedy_token_selection])
def test_equal_choices_fall_to_the_first(method: ChoicesSamplingMethod) -> None:
    assert method.decide(scored([rows(-1.0)] * 3)).decision == CHOICES[0]


def test_a_method_that_needs_more_than_it_has_says_so() -> None:
    with pytest.raises(ValueError, match="without the prompt"):
        unconditional_likelihood_normalized.decide(scored(GIVEN))
