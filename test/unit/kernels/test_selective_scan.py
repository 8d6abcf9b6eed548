"""Mamba's selective scan: many tokens together are what they are one by one, and both are the formula of the paper."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.state_runs import one_run
from mysglang.srt.kernels.selective_scan import selective_runs, selective_step
from mysglang.srt.kernels.states import CHUNK

CHANNELS, STATE = 10, 6
AT = 3
"""The row's entry among five."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tokens(count: int) -> tuple[Tensor, ...]:
    """Inputs, what time steps are made of, b and c of some tokens; time biases, rates and skips of the channels."""
    return (
        randn(count, CHANNELS),
        randn(count, CHANNELS, seed=1),
        randn(count, STATE, seed=2),
        randn(count, STATE, seed=3),
        randn(CHANNELS, seed=4),
        randn(CHANNELS, STATE, seed=5),
        randn(CHANNELS, seed=6),
    )


def formula(given: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the outputs and the last state, token by token in float64."""
    x, time, b, c, time_bias, log_rate, skip = (each.double() for each in given)
    state, out = state.double(), []
    for token in range(len(x)):
        step = F.softplus(time[token] + time_bias)
        state = torch.exp(-step[:, None] * log_rate.exp()) * state + torch.outer(step * x[token], b[token])
        out.append(state @ c[token] + skip * x[token])
    return torch.stack(out), state


@pytest.mark.parametrize("count", [1, 3, CHUNK, 2 * CHUNK + 5])
def test_the_scan_is_the_formula(count: int) -> None:
    given, states = tokens(count), randn(5, CHANNELS, STATE, seed=7)
    expected, last = formula(given, states[AT])
    together, apart = states.clone(), states.clone()
    found = selective_runs(*given, together, one_run(count, AT))  # type: ignore[call-arg, arg-type]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    at, steps = torch.tensor([AT]), []
    for token in range(count):
        one = (*(each[token : token + 1] for each in given[:4]), *given[4:])
        steps.append(selective_step(*one, apart, at))  # type: ignore[call-arg, arg-type]
    torch.testing.assert_close(torch.cat(steps).double(), expected, rtol=1e-4, atol=1e-5)
    for after in (together, apart):
        torch.testing.assert_close(after[AT].double(), last, rtol=1e-4, atol=1e-5)
        after[AT] = states[AT]
        assert torch.equal(after, states), "a state of another row was written"
