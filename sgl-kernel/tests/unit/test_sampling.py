"""The sampler of rows, compiled as C++ with a fiber for each thread, against its definition in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from sampling_case import TOP, Case, check, uniform
from torch import Tensor

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.sampling import RowLogprobs, arguments

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def sampler(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_sampler.cpp")


def sample(library: ctypes.CDLL, case: Case) -> tuple[Tensor, RowLogprobs]:
    """The tokens with log-probabilities, which are the same without them."""
    plain, _ = answers(library, case, None)
    case.counts.copy_(case.counts_before)
    tokens, logprobs = answers(library, case, TOP)
    assert torch.equal(tokens, plain) and logprobs is not None
    return tokens, logprobs


def answers(
    library: ctypes.CDLL, case: Case, top: int | None, plain: bool = False
) -> tuple[Tensor, RowLogprobs | None]:
    given = case.arguments()  # the step has their addresses only
    step, tokens, logprobs = arguments(*given, top)
    tokens.fill_(-77)
    if logprobs is not None:
        logprobs.packed.fill_(-77)
    assert library.emulated_sample_rows(ctypes.byref(step), len(tokens), plain) == 0
    return tokens, logprobs


@pytest.mark.parametrize(
    ("vocab", "spread", "ties"), [(600, 3.0, False), (500, 3.0, True), (299, 0.02, False), (1100, 8.0, False)]
)
def test_every_mix_of_options(sampler: ctypes.CDLL, vocab: int, spread: float, ties: bool) -> None:
    case = Case(vocab, 12, vocab, ties=ties, spread=spread)
    check(case, *sample(sampler, case))


@pytest.mark.parametrize(
    ("vocab", "spread", "ties"), [(600, 3.0, False), (500, 3.0, True), (299, 0.02, False), (1100, 200.0, False)]
)
def test_plain_rows_have_the_same_tokens(sampler: ctypes.CDLL, vocab: int, spread: float, ties: bool) -> None:
    case = Case(vocab, 40, vocab, ties=ties, spread=spread).without_options()
    case.greedy[3] = -1
    tokens, _ = answers(sampler, case, None, plain=True)
    newest = case.newest.clone()
    assert torch.equal(tokens, answers(sampler, case, None)[0]) and torch.equal(case.newest, newest)
    assert tokens[3] == -1 and len(tokens.unique()) > 5


def test_a_row_with_numbers_that_are_not_finite_gets_no_token(sampler: ctypes.CDLL) -> None:
    case = Case(3, 8, 400)
    case.logits[2, 7] = math.nan
    case.greedy[2] = -1
    tokens, _ = sample(sampler, case)
    assert tokens[2] == -1 and case.newest[case.slots[2]] == 0
    assert torch.equal(case.counts[2], case.counts_before[2])
    assert (tokens[[0, 1, 3, 4, 5, 6, 7]] >= 0).all()


def test_equal_weights_at_the_edge_are_taken_by_the_lowest_ids(sampler: ctypes.CDLL) -> None:
    case = Case(4, 12, 300)
    case.logits[:] = torch.zeros(300)
    case.rows["line"] = -1
    case.rows["bias_end"], case.rows["forbidden_end"] = case.rows["bias_begin"], case.rows["forbidden_begin"]
    case.rows["top_k"], case.rows["top_p"], case.rows["min_p"], case.rows["temperature"] = 4, 1, 0, 1
    case.greedy[:] = 0
    tokens, _ = sample(sampler, case)
    expected = [
        int(4 * uniform(int(row["seed"]), int(length))) for row, length in zip(case.rows, case.lengths, strict=True)
    ]
    assert tokens.tolist() == expected


def test_both_zeros_are_one(sampler: ctypes.CDLL) -> None:
    case = Case(6, 10, 40)
    case.logits[:] = torch.zeros(40)
    case.logits[:, :5] *= -1
    case.rows["line"] = -1
    case.rows["bias_end"], case.rows["forbidden_end"] = case.rows["bias_begin"], case.rows["forbidden_begin"]
    case.rows["top_k"], case.rows["temperature"], case.rows["top_logprobs"] = 1, 1, 1
    case.greedy[:] = 0
    tokens, _ = sample(sampler, case)
    assert (tokens == 0).all()
