"""Causal convolutions of prompts on a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from convolution_case import CHUNK, CONVOLUTION_CASES

from mysgl_kernel.convolution import convolve


@pytest.mark.parametrize("name", CONVOLUTION_CASES)
def test_against_float64(name: str) -> None:
    case = replace(CONVOLUTION_CASES[name], device="cuda")
    inputs, out = case.arguments()
    convolve(inputs, out, chunk=CHUNK, silu=case.silu)
    case.check(out)
