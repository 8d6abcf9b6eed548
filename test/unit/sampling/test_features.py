"""Sampling features from the request to the token: each row has what it asks for, whatever stands beside it.

One that nobody here knows needs nothing but its own two sides and a row of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.sampler import Sampler, SamplingOps
from mysglang.srt.model_executor.feature_stager import FeatureStager
from mysglang.srt.model_executor.step_inputs import StepStager, is_plain
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.feature import (
    Act,
    DeviceFacts,
    DeviceSide,
    FeatureColumns,
    HostFacts,
    HostSide,
    SamplingFeature,
    Slots,
    Stage,
    Tensors,
)
from mysglang.srt.sampling.features import FEATURES
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.finish import StopWatch
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder

VOCAB, EOS, CONTEXT, SLOTS = 40, 39, 64, 8
OPS = SamplingOps.choose()

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, min_new_tokens=3, stop_token_ids=[7]),
    SamplingParams(temperature=0.8, sampling_seed=1),
    SamplingParams(temperature=3.0, top_k=5, sampling_seed=2),
    SamplingParams(temperature=2.0, top_p=0.7, min_p=0.02, frequency_penalty=1.5, sampling_seed=3),
    SamplingParams(temperature=0, presence_penalty=2.0, repetition_penalty=1.4, logit_bias={3: 9.0, 4: -9.0}),
    SamplingParams(temperature=1.0, sampling_seed=4, logit_bias={5: 4.0}, min_new_tokens=20),
]


@dataclass
class Decoder:
    """Both wings of sampling around a model whose logits are a function of (row, length) alone."""

    features: Sequence[SamplingFeature] = FEATURES
    tokens: dict[int, list[int]] = field(default_factory=dict)
    uploads: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = RequestTable(SLOTS, CONTEXT)
        self.builder = SamplingBuilder(self.table, (EOS,), self.features)
        facts = DeviceFacts(VOCAB, torch.device("cpu"), OPS.draw)
        uploader = Uploader(platform_named("cpu"))
        self.stager = StepStager(uploader, FeatureStager(facts, self.features), OPS)
        self.sampler = Sampler(OPS)

    def open(self, slot: int, params: SamplingParams) -> None:
        ids = np.arange(slot + 2, dtype=np.int32)
        watch = StopWatch(token_ids=(), text=None, min_new=0)
        req = Req(
            rid=str(slot),
            ids=ids,
            prompt_len=len(ids),
            sampling=params,
            max_new=CONTEXT - len(ids),
            stream=False,
            extra_key="",
            stop_watch=watch,
        )
        self.table.open(req, slot, cached=0)
        self.builder.open(slot, params)
        self.tokens[slot] = []

    def close(self, slot: int) -> list[int]:
        self.table.close(slot)
        self.builder.close(slot)
        return self.tokens.pop(slot)

    def step(self, slots: Slots, yields: Sequence[bool], *, prompts: bool = False) -> ModelWorkerBatch:
        """One token for each row that yields."""
        known = self.table.known[slots]
        lens = known.copy() if prompts else np.ones_like(known)
        batch = ScheduleBatch(
            mode=ForwardMode.EXTEND if prompts else ForwardMode.DECODE,
            slots=slots,
            lives=self.table.life[slots],
            starts=known - lens,
            lens=lens,
            high_lens=known,
            yields=np.array(yields),
            new_tokens=int(lens.sum()),
        )
        step = ModelWorkerBatch(
            mode=batch.mode,
            input_ids=lens[:0],
            slots=slots,
            seq_lens=known,
            extend_lens=lens,
            out_cache_loc=lens[:0],
            yields=batch.yields,
            sampling=self.builder.columns(batch),
            sampling_now=self.builder.now(batch),
        )
        rows = slots[batch.yields].tolist()
        logits = torch.cat([logits_of(slot, int(self.table.known[slot])) for slot in rows])
        sampled = self.sampler.sample(logits, self.stager.stage(step, {}).sampling)
        for slot, token in zip(rows, sampled.tokens.tolist(), strict=True):
            self.table.tokens[slot, self.table.known[slot]] = token
            self.table.known[slot] += 1
            self.tokens[slot].append(token)
        return step


def logits_of(slot: int, length: int) -> Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1000 * slot + length)) * 3


def alone(slot: int, params: SamplingParams, count: int, features: Sequence[SamplingFeature] = FEATURES) -> list[int]:
    decoder = Decoder(features)
    decoder.open(slot, params)
    for at in range(count):
        decoder.step(np.array([slot]), [True], prompts=at == 0)
    return decoder.close(slot)


@pytest.mark.parametrize("seed", range(6))
def test_packed_rows_get_what_they_get_alone(seed: int) -> None:
    """Joining, leaving, in steps of prompts some of which yield nothing yet."""
    rng = np.random.default_rng(seed)
    decoder = Decoder()
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


class EvenBySlot(HostSide):
    """Whoever asks for it in custom_params gets even tokens only."""

    def __init__(self, facts: HostFacts) -> None:
        pass

    def open(self, slot: int, params: SamplingParams) -> bool:
        return bool(params.custom_params)

    def kept(self, slots: Slots, users: Slots) -> FeatureColumns:
        return FeatureColumns("even", users, {})


@dataclass(frozen=True)
class Even(Act):
    stage: ClassVar[Stage] = Stage.MASK
    rows: Tensor

    def edit(self, logits: Tensor, broken: Tensor) -> None:
        odd = torch.zeros_like(logits)
        odd[self.rows, 1::2] = -torch.inf
        logits += odd


class EvenOnDevice(DeviceSide):
    def __init__(self, facts: DeviceFacts) -> None:
        pass

    def act(self, tensors: Tensors) -> Act:
        return Even(tensors["rows"])


def test_a_new_feature_is_two_sides_and_a_row_of_the_table() -> None:
    table = (SamplingFeature("even", EvenBySlot, EvenOnDevice), *FEATURES)
    decoder = Decoder(table)
    asked = {1: SamplingParams(temperature=5.0, sampling_seed=8, custom_params={"even": True}), 2: PARAMS[2]}
    for slot, params in asked.items():
        decoder.open(slot, params)
    for at in range(12):
        decoder.step(np.array([2, 1]), [True, True], prompts=at == 0)
    assert not any(token % 2 for token in decoder.tokens[1])
    assert any(token % 2 for token in decoder.tokens[2])
    assert [decoder.close(slot) for slot in asked] == [alone(slot, params, 12, table) for slot, params in asked.items()]
