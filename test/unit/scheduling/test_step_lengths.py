"""How long steps with prompts are: within their bound, on captured sizes where there are any, and never wasteful."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.forward.worker import StepRates
from mysglang.srt.scheduling.step_lengths import AMORTIZED, EFFICIENCY, STRETCH, StepLengths

H200_8B = StepRates(
    token_s=21.8e-6,
    weights_s=3.65e-3,
    step_s=1.06e-3,
    key_s=29.8e-9,
    queued_s=25.6e-3,
    decode_rows=512,
    prompt_tokens=(128, 256, 512, 796),
    mixed_steps=((128, 16), (256, 16), (256, 64), (512, 16), (512, 64), (512, 256), (796, 256)),
)
"""Llama-8B on one H200, about."""
UNCAPTURED = replace(H200_8B, decode_rows=0, prompt_tokens=(), mixed_steps=())
ROWS, MEAN_LEN = st.integers(1, 700), st.integers(1, 3000)


def seconds(rates: StepRates, rows: int, keys: int, prompt: int) -> float:
    """Length of a step, reckoned as the device is described."""
    sizes = [(room, tokens) for tokens, room in rates.mixed_steps if room >= rows and tokens >= prompt + room]
    smallest = min((room for _, room in rates.mixed_steps if room >= rows), default=0)
    captured = [tokens for room, tokens in sizes if room == smallest]
    if not prompt and rows <= rates.decode_rows:
        captured = [rows]
    tokens = min(captured, default=rows + prompt)
    device = max(rates.weights_s, tokens * rates.token_s) + rates.step_s + keys * rates.key_s
    return device if captured else max(device, rates.queued_s)


@given(rows=ROWS, mean=MEAN_LEN)
@pytest.mark.parametrize("rates", [H200_8B, UNCAPTURED], ids=["captured", "uncaptured"])
def test_few_prompts_prolong_a_step_within_the_bound(rates: StepRates, rows: int, mean: int) -> None:
    share = StepLengths(rates).share(rows, rows * mean, many=False)
    decode_s = seconds(rates, rows, rows * mean, 0)
    assert share.tokens > 0
    if share.together:
        assert seconds(rates, rows, rows * mean, share.tokens) <= STRETCH * decode_s * 1.001


@given(rows=ROWS, mean=MEAN_LEN)
@pytest.mark.parametrize("rates", [H200_8B, UNCAPTURED], ids=["captured", "uncaptured"])
def test_while_many_wait_no_step_is_wasteful(rates: StepRates, rows: int, mean: int) -> None:
    """It is as long as its bound, or if such a step cannot be efficient, no longer than it must be."""
    keys = rows * mean
    share = StepLengths(rates).share(rows, keys, many=True)
    took = seconds(rates, rows, keys, share.tokens)
    useful = (share.tokens + rows) * rates.token_s + keys * rates.key_s
    assert share.together and useful >= EFFICIENCY * took * 0.999
    bound = max(STRETCH * seconds(rates, rows, keys, 0), AMORTIZED * rates.weights_s)
    assert took <= bound * 1.001


def test_a_light_load_on_an_h200_takes_captured_steps_alone() -> None:
    """Llama-8B with 16 rows of 900 tokens: 496 prompt tokens beside them, which take about 12 ms."""
    lengths = StepLengths(H200_8B)
    share = lengths.share(16, 16 * 900, many=False)
    assert share.together and (share.tokens + 16, 16) in H200_8B.mixed_steps
    assert lengths.few(16, 16 * 900) > 2 * 1024


def test_where_no_step_can_be_shared_prompts_have_short_ones_of_their_own() -> None:
    """Nothing of prompts and decoding rows is captured, and the host is slow."""
    rates = replace(H200_8B, mixed_steps=())
    share = StepLengths(rates).share(4, 4 * 500, many=False)
    assert not share.together and share.tokens in rates.prompt_tokens
