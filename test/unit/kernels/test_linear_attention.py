"""The gated delta rule: many tokens together are what they are one by one, and both are the formula of the paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.state_runs import one_run
from mysglang.srt.kernels.delta_rule import delta_runs, delta_step
from mysglang.srt.kernels.gated_norm import gated_rms_norm
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.states import CHUNK

KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 6, 16, 24
CHANNELS, KERNEL = 20, 4
AT = 3
"""The row's entry among five."""


BY_CHANNEL = [(count, (KEY_DIM,)) for count in (1, CHUNK - 1, 2 * CHUNK + 5)]
"""Tokens with a decay for each channel of the key."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tokens(count: int, *, forget: float = 1.0, channels: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    """Queries, keys, values, and what decays and strengths are made of; rates and time biases of the heads. channels:
    those of a head that have decays of their own.
    """
    return (
        randn(count, KEY_HEADS, KEY_DIM),
        randn(count, KEY_HEADS, KEY_DIM, seed=1),
        randn(count, VALUE_HEADS, VALUE_DIM, seed=2),
        randn(count, VALUE_HEADS, *channels, seed=3),
        randn(count, VALUE_HEADS, seed=4),
        randn(VALUE_HEADS, seed=5) / 3 + math.log(forget),
        randn(VALUE_HEADS, *channels, seed=6) - 3,
    )


def rows(given: tuple[Tensor, ...], part: slice) -> tuple[Tensor, ...]:
    """The tensors of some tokens."""
    return (*(each[part] for each in given[:5]), *given[5:])


def formula(given: tuple[Tensor, ...], state: Tensor, strongest: float = 1.0) -> tuple[Tensor, Tensor]:
    """Equation 10 of the paper as it is there, in float64: S_t = S_{t-1} a (I - b k k^T) + b v k^T, where S is
    [value_dim, key_dim], and a may be a row of decays; what it reads, and the last state as we keep it.
    """
    queries, keys, values, a, b, log_rate, time_bias = (each.double() for each in given)
    rates = log_rate.exp().view(-1, *[1] * (a.dim() - 2))
    decays, strengths = (-rates * F.softplus(a + time_bias)).exp(), strongest * b.sigmoid()
    out = torch.zeros(values.shape, dtype=torch.float64)
    last = torch.empty(state.shape, dtype=torch.float64)
    for head in range(VALUE_HEADS):
        shared = head // (VALUE_HEADS // KEY_HEADS)
        matrix = state[head].double().T
        for token in range(len(values)):
            k = keys[token, shared] / keys[token, shared].norm()
            q = queries[token, shared] / queries[token, shared].norm() / KEY_DIM**0.5
            a, b = decays[token, head], strengths[token, head]
            matrix = (a * matrix) @ (torch.eye(KEY_DIM) - b * torch.outer(k, k)) + b * torch.outer(
                values[token, head], k
            )
            out[token, head] = matrix @ q
        last[head] = matrix.T
    return out, last


@pytest.mark.parametrize("strongest", [1.0, 2.0])
@pytest.mark.parametrize(
    ("count", "channels"),
    [*((count, ()) for count in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)), *BY_CHANNEL],
)
def test_delta_rule_is_the_formula(count: int, channels: tuple[int, ...], strongest: float) -> None:
    given, states = tokens(count, channels=channels), randn(5, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    expected, last = formula(given, states[AT], strongest)
    together, apart = states.clone(), states.clone()
    torch.testing.assert_close(
        delta_runs(*given, together, one_run(count, AT), strongest).double(), expected, rtol=1e-3, atol=1e-4
    )
    at = torch.tensor([AT])
    steps = [delta_step(*rows(given, slice(token, token + 1)), apart, at, strongest) for token in range(count)]
    torch.testing.assert_close(torch.cat(steps).double(), expected, rtol=1e-3, atol=1e-4)
    for found in (together, apart):
        torch.testing.assert_close(found[AT].double(), last, rtol=1e-3, atol=1e-4)
        found[AT] = states[AT]
        assert torch.equal(found, states), "a state of another row was written"


def test_pieces_are_the_whole() -> None:
    """A prompt in pieces on a CPU, and at once."""
    given, states = tokens(5 * CHUNK + 3), randn(5, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    whole, runs = states.clone(), one_run(5 * CHUNK + 3, AT)
    torch.testing.assert_close(delta_runs(*given, states, runs), delta_runs.reference(*given, whole, runs))
    torch.testing.assert_close(states, whole)


@pytest.mark.parametrize("channels", [(), (KEY_DIM,)])
def test_strong_decay_overflows_nowhere(channels: tuple[int, ...]) -> None:
    """A decay that forgets everything within a chunk: quotients of two decays would be infinite."""
    given = tokens(2 * CHUNK, forget=400.0, channels=channels)
    state = randn(5, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    expected, last = formula(given, state[AT])
    torch.testing.assert_close(
        delta_runs(*given, state, one_run(2 * CHUNK, AT)).double(), expected, rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(state[AT].double(), last, rtol=1e-3, atol=1e-4)


def test_rows_of_a_step_are_apart() -> None:
    given, states = tokens(4), randn(5, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    at, together, apart = torch.tensor([2, 0, 4, 1]), states.clone(), states.clone()
    found = delta_step(*given, together, at)
    for row in range(4):
        alone = delta_step(*rows(given, slice(row, row + 1)), apart, at[row : row + 1])
        torch.testing.assert_close(found[row : row + 1], alone)
    torch.testing.assert_close(together, apart)
    reference = states.clone()
    torch.testing.assert_close(delta_step.reference(*given, reference, at), found)
    torch.testing.assert_close(reference, together)


@pytest.mark.parametrize("cuts", [[9], [1, 8], [2, 3, 4], [1] * 9])
@pytest.mark.parametrize("plain", [True, False])
def test_convolution_goes_on_from_the_newest_inputs(cuts: list[int], plain: bool) -> None:
    """With silu, or without and with a bias."""
    x, weight, recent = randn(9, CHANNELS), randn(CHANNELS, KERNEL), randn(5, KERNEL - 1, CHANNELS)
    seen, bias = torch.cat((recent[AT], x)), randn(CHANNELS, seed=1) if plain else None
    expected = F.conv1d(seen.T.unsqueeze(0), weight.unsqueeze(1), bias, groups=CHANNELS)[0].T
    expected = expected if plain else F.silu(expected)
    found, after = [], recent.clone()
    for part in x.split(cuts):
        if len(part) == 1:
            found.append(conv_step(part, weight, after, torch.tensor([AT]), bias, silu=not plain))
        else:
            found.append(conv_runs(part, weight, after, one_run(len(part), AT), bias, silu=not plain))
    torch.testing.assert_close(torch.cat(found), expected)
    torch.testing.assert_close(after[AT], seen[-(KERNEL - 1) :])
    after[AT] = recent[AT]
    assert torch.equal(after, recent)


def test_convolution_leaves_zeros_for_tokens_in_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a product would take up numbers that memory held before."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    x, weight, recent = randn(9, CHANNELS), randn(CHANNELS, KERNEL), randn(5, KERNEL - 1, CHANNELS)
    torch.use_deterministic_algorithms(True)
    try:
        found = conv_runs(x, weight, recent, one_run(8, AT))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not found[8].any()
    assert found[:8].all()


def test_gated_norm() -> None:
    x, gate, weight = randn(3, 2, 8), randn(3, 2, 8, seed=1), randn(8)
    expected = F.rms_norm(x, (8,), weight, 1e-6) * F.silu(gate)
    torch.testing.assert_close(gated_rms_norm(x, weight, gate, 1e-6), expected)
