"""greedy_tokens and draw_tokens on the CPU: the reference and the quicker versions against the definition."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fixtures.sampling_cases import Draws, assert_true, random_draws
from mysglang.srt.kernels.cpu import native
from mysglang.srt.kernels.cpu import sampling as cpu_sampling
from mysglang.srt.kernels.sampling import Filters, draw_tokens, greedy_tokens

VERSIONS = {
    "reference": draw_tokens.reference,
    "torch": cpu_sampling.draw_tokens,
    "native": native.draw_tokens,
}
every_version = pytest.mark.parametrize("draw", VERSIONS.values(), ids=VERSIONS)
FILTERS = list(itertools.product([False, True], repeat=3))

Draw = Callable[..., Tensor]


@every_version
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("k", "p", "m"), FILTERS)
def test_draws_are_true(draw: Draw, ties: bool, k: bool, p: bool, m: bool) -> None:
    for seed in range(3):
        draws = random_draws(seed, ties=ties, k=k, p=p, m=m)
        assert_true(draw(*draws.arguments()), draws)


@every_version
def test_a_filter_that_leaves_more_than_the_first_guess(draw: Draw) -> None:
    draws = random_draws(0, vocab=3000, p=True)
    draws = Draws(draws.logits * 0.01, draws.uniforms, draws.temperature, None, draws.top_p, None)
    assert_true(draw(*draws.arguments()), draws)


@every_version
def test_a_row_does_not_depend_on_its_neighbours(draw: Draw) -> None:
    draws = random_draws(5, k=True, p=True, m=True)
    together = draw(*draws.arguments())
    alone = [draw(*draws.alone(row).arguments()) for row in range(len(together))]
    assert torch.equal(together, torch.cat(alone))


@every_version
def test_frequencies_follow_the_probabilities(draw: Draw) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    n = 4000
    uniforms = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens = draw(probabilities.log().expand(n, -1), uniforms, torch.ones(n), Filters())
    assert torch.allclose(tokens.bincount(minlength=5) / n, probabilities, atol=1e-3)


@every_version
def test_a_broken_row_harms_nobody(draw: Draw) -> None:
    draws = random_draws(7, k=True, p=True, m=True)
    logits = draws.logits.clone()
    logits[3] = math.nan
    tokens = draw(logits, *draws.arguments()[1:])
    good = torch.arange(len(tokens)) != 3
    assert torch.equal(tokens[good], draw(*draws.arguments())[good])
    assert 0 <= int(tokens[3]) < logits.shape[1]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@every_version
def test_the_ends_of_the_unit_interval(draw: Draw, uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 1.0, 0.3, -math.inf]])
    (token,) = draw(logits, torch.tensor([uniform], dtype=torch.float64), torch.ones(1), Filters()).tolist()
    assert token == (1 if uniform == 0 else 2)


@every_version
def test_of_equal_tokens_the_lowest_ids_stay(draw: Draw) -> None:
    n, allowed = 2000, 777
    uniforms = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens = draw(torch.zeros(n, 1500), uniforms, torch.ones(n), Filters(top_k=torch.full((n,), allowed).int()))
    assert int(tokens.max()) == allowed - 1
    assert (tokens.bincount(minlength=allowed) - n / allowed).abs().max() < 1


def test_the_native_draw_reads_rows_at_a_distance_and_leaves_other_layouts_to_torch() -> None:
    draws = random_draws(3, k=True, p=True, m=True)
    expected = native.draw_tokens(*draws.arguments())
    wide = torch.full((len(expected), draws.logits.shape[1] + 9), math.nan)
    wide[:, : draws.logits.shape[1]] = draws.logits
    for logits in (wide[:, : draws.logits.shape[1]], draws.logits.T.contiguous().T):
        assert torch.equal(native.draw_tokens(logits, *draws.arguments()[1:]), expected)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert greedy_tokens(torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 5.0]])).tolist() == [1, 0]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_greedy_marks_rows_that_are_not_finite(broken: float) -> None:
    logits = torch.randn(3, 50).to(torch.bfloat16)
    logits[1, 17] = broken
    tokens = greedy_tokens(logits)
    assert tokens.tolist() == [int(logits[0].argmax()), -1, int(logits[2].argmax())]
