"""Mamba-2's recurrence: many tokens together are what they are one by one, and both are the formula of the paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.state_runs import one_run
from mysglang.srt.kernels.gated_norm import gated_group_norm
from mysglang.srt.kernels.state_space import scan_runs, scan_step
from mysglang.srt.kernels.states import CHUNK

HEADS, HEAD_DIM, GROUPS, STATE = 6, 24, 2, 16
AT = 3
"""The row's entry among five."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tokens(count: int, *, forget: float = 1.0) -> tuple[Tensor, ...]:
    """Inputs, what is written with, what is read with, time steps; biases of these, rates and skips of the heads."""
    return (
        randn(count, HEADS, HEAD_DIM),
        randn(count, GROUPS, STATE, seed=1),
        randn(count, GROUPS, STATE, seed=2),
        randn(count, HEADS, seed=3),
        randn(HEADS, seed=6) / 2,
        randn(HEADS, seed=4) + math.log(forget / 10),
        randn(HEADS, seed=5),
    )


def rows(given: tuple[Tensor, ...], part: slice) -> tuple[Tensor, ...]:
    """The tensors of some tokens."""
    return (*(each[part] for each in given[:4]), *given[4:])


def formula(given: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 1 of the paper, a scalar for each head, in float64: h_t = a_t h_{t-1} + d_t x_t b_t^T, y_t = h_t c_t,
    where h is [head_dim, state_size]; what it reads, and the last state as we keep it.
    """
    inputs, write, read, time, time_bias, log_rate, skip = (each.double() for each in given)
    steps, rate = F.softplus(time + time_bias), -log_rate.exp()
    out = torch.zeros(inputs.shape, dtype=torch.float64)
    last = torch.empty(state.shape, dtype=torch.float64)
    for head in range(HEADS):
        group, matrix = head // (HEADS // GROUPS), state[head].double().T
        for token in range(len(inputs)):
            x, step = inputs[token, head], steps[token, head]
            matrix = (step * rate[head]).exp() * matrix + step * torch.outer(x, write[token, group])
            out[token, head] = matrix @ read[token, group] + skip[head] * x
        last[head] = matrix.T
    return out, last


@pytest.mark.parametrize("forget", [1.0, 400.0], ids=["slowly", "within a few tokens"])
@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, 3 * CHUNK + 5])
def test_recurrence_is_the_formula(count: int, forget: float) -> None:
    given, states = tokens(count, forget=forget), randn(5, HEADS, STATE, HEAD_DIM)
    expected, last = formula(given, states[AT])
    together, apart = states.clone(), states.clone()
    torch.testing.assert_close(scan_runs(*given, together, one_run(count, AT)).double(), expected, rtol=1e-3, atol=1e-4)
    at = torch.tensor([AT])
    steps = [scan_step(*rows(given, slice(token, token + 1)), apart, at) for token in range(count)]
    torch.testing.assert_close(torch.cat(steps).double(), expected, rtol=1e-3, atol=1e-4)
    for found in (together, apart):
        torch.testing.assert_close(found[AT].double(), last, rtol=1e-3, atol=1e-4)
        found[AT] = states[AT]
        assert torch.equal(found, states), "a state of another row was written"


def test_pieces_are_the_whole() -> None:
    """A prompt in pieces on a CPU, and at once."""
    given, states = tokens(5 * CHUNK + 3), randn(5, HEADS, STATE, HEAD_DIM)
    whole, runs = states.clone(), one_run(5 * CHUNK + 3, AT)
    torch.testing.assert_close(scan_runs(*given, states, runs), scan_runs.reference(*given, whole, runs))
    torch.testing.assert_close(states, whole)


def test_rows_of_a_step_are_apart() -> None:
    given, states = tokens(4), randn(5, HEADS, STATE, HEAD_DIM)
    at, together, apart = torch.tensor([2, 0, 4, 1]), states.clone(), states.clone()
    found = scan_step(*given, together, at)
    for row in range(4):
        part = slice(row, row + 1)
        alone = scan_step(*rows(given, part), apart, at[part])
        torch.testing.assert_close(found[part], alone)
    torch.testing.assert_close(together, apart)
    reference = states.clone()
    torch.testing.assert_close(scan_step.reference(*given, reference, at), found)
    torch.testing.assert_close(reference, together)


def test_norm_of_groups() -> None:
    x, gate, weight = randn(3, 8), randn(3, 8, seed=1), randn(8)
    expected = F.rms_norm((x * F.silu(gate)).view(3, 2, 4), (4,), eps=1e-6).flatten(1) * weight
    torch.testing.assert_close(gated_group_norm(x, weight, gate, 1e-6, 2), expected)
