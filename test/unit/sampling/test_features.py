"""Sampling features from the request to the token: each row has what it asks for, whatever is beside it."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.sampling_decoder import SLOTS, Decoder, alone
from mysglang.srt.forward.worker_batch import LogprobColumns
from mysglang.srt.model_executor.step_inputs import is_plain
from mysglang.srt.sampling.sampling_params import SamplingParams

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, min_new_tokens=3, stop_token_ids=[7]),
    SamplingParams(temperature=0.8, sampling_seed=1),
    SamplingParams(temperature=3.0, top_k=5, sampling_seed=2),
    SamplingParams(temperature=2.0, top_p=0.7, min_p=0.02, frequency_penalty=1.5, sampling_seed=3),
    SamplingParams(temperature=0, presence_penalty=2.0, repetition_penalty=1.4, logit_bias={3: 9.0, 4: -9.0}),
    SamplingParams(temperature=1.0, sampling_seed=4, logit_bias={5: 4.0}, min_new_tokens=20),
]


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_packed_rows_get_what_they_get_alone(seed: int, by_rows: bool) -> None:
    """Joining, leaving, in steps of prompts some of which yield nothing yet. Alone they are sampled by acts."""
    rng = np.random.default_rng(seed)
    decoder = Decoder(by_rows=by_rows)
    params: dict[int, SamplingParams] = {}
    for _ in range(60):
        if len(params) < SLOTS and (not params or rng.random() < 0.4):
            slot = int(rng.choice([slot for slot in range(SLOTS) if slot not in params]))
            params[slot] = PARAMS[rng.integers(len(PARAMS))]
            decoder.open(slot, params[slot])
            beside = [other for other in params if other != slot and not decoder.tokens[other]]
            rows = np.array(sorted([slot, *beside]))
            decoder.step(rows, [row == slot for row in rows.tolist()], prompts=True)
            continue
        rows = rng.permutation(np.array(sorted(params)))
        for _ in range(int(rng.integers(1, 4))):
            decoder.step(rows, [True] * len(rows))
        for slot in [slot for slot in params if rng.random() < 0.15 or len(decoder.tokens[slot]) > 40]:
            count = len(decoder.tokens[slot])
            assert decoder.close(slot) == alone(slot, params.pop(slot), count), slot


def test_rows_have_the_logprobs_that_acts_find() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    rows, found = np.arange(len(PARAMS)), []
    asking, top = rows % 3 != 1, np.where(rows % 3 == 2, 4, 0).astype(np.int32)
    asked = LogprobColumns(asking, top, [nothing] * len(rows), nothing, nothing, np.zeros_like(top))
    for by_rows in (False, True):
        decoder = Decoder(by_rows=by_rows)
        for slot, params in enumerate(PARAMS):
            decoder.open(slot, params)
        for place in range(4):
            decoder.step(rows, [True] * len(rows), prompts=place == 0, logprobs=asked if place > 1 else None)
        assert decoder.logprobs is not None
        found.append(decoder.logprobs.arrived())
    acts, kernel = found
    for name in ("chosen", "top_vals", "top_ids", "token_ids_vals"):
        assert getattr(kernel, name) == pytest.approx(getattr(acts, name), abs=1e-5), name


def test_rows_are_uploaded_when_they_change() -> None:
    decoder = Decoder(by_rows=True)
    for slot in (0, 2, 3):
        decoder.open(slot, PARAMS[slot])
    steps = [decoder.step(np.array(rows), [True] * len(rows)) for rows in ([0, 2], [0, 2], [2, 3])]
    first, second, third = (decoder.stager.stage_captured(step).rows for step in (steps[0], steps[1], steps[2]))
    assert first is second is not third and third is not None


def test_plain_steps_carry_nothing() -> None:
    decoder = Decoder()
    for slot in (0, 3):
        decoder.open(slot, PARAMS[0])
    assert is_plain(decoder.step(np.array([0, 3]), [True, True]))
    # The last user of every feature has left.
    for params in PARAMS[1:]:
        decoder.open(5, params)
        assert not is_plain(decoder.step(np.array([0, 5]), [True, True], prompts=True))
        decoder.close(5)
        assert is_plain(decoder.step(np.array([0, 3]), [True, True]))


def test_the_same_rows_are_uploaded_once() -> None:
    decoder = Decoder()
    for slot, params in enumerate(PARAMS):
        decoder.open(slot, params)
    rows = np.arange(len(PARAMS))
    first, second = (decoder.step(rows, [True] * len(rows)) for _ in range(2))
    assert first.sampling is second.sampling
    staged = decoder.stager.stage(second, {}).tokens
    # Which answers are too short to end changes, and so do the numbers that are drawn with.
    assert staged.keys() == {"drawing.uniforms", *(f"min_new_tokens.{name}" for name in ("rows", "ids", "values"))}
