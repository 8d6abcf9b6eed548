"""The logits of a router on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from logits_case import LOGITS_CASES, LogitsCase

from mysgl_kernel.experts_logits import router_logits

CASES = {
    **LOGITS_CASES,
    "many rows": LogitsCase(250, 128, 2048),
    "many experts": LogitsCase(100, 512, 4096),
    "both": LogitsCase(255, 500, 2048, biased=True),
}


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    case = CASES[name]
    given = case.arguments("cuda")
    router_logits(*given)
    case.check(*given)
