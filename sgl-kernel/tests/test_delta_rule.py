"""The gated delta rule on a GPU, one token of each row and chunks of prompts, against the same sums in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mysgl_kernel.delta_rule import step, take_chunks

sys.path.insert(0, str(Path(__file__).parent))
from delta_case import CHUNK_CASES, EPS
from step_case import STRONGEST, StepCase

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "shared"), [(1, 2, 2), (3, 4, 1), (67, 32, 2), (150, 6, 3)])
def test_a_token_of_each_row(rows: int, heads: int, shared: int, kept: torch.dtype) -> None:
    case = StepCase(rows, heads, shared, kept, device="cuda")
    found = []
    for norm in (None, None, case.norm):
        states = case.states.clone()
        found.append((step(case.tokens, states, case.at, STRONGEST, EPS, norm), states))
        case.check(*found[-1], normed=norm is not None)
    (first, states), (second, again), (_, last) = found
    assert torch.equal(first, second) and torch.equal(states, again) and torch.equal(states, last)


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_chunks(name: str) -> None:
    case = replace(CHUNK_CASES[name], device="cuda")
    case.check(take_chunks(*case.arguments()))
