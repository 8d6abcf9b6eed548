"""Recurrences and convolutions: CUDA sources, compiled as C++ with a fiber for each thread, against their
definitions in float64.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from convolution_case import CHUNK, CONVOLUTION_CASES
from delta_case import CHUNK_CASES, EPS
from span_case import SPAN_CASES
from step_case import STRONGEST, StepCase

from mysgl_kernel import convolution
from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.delta_rule import chunk_arguments, step_arguments

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_states.cpp")


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("rows", "heads", "shared", "blocks"), [(1, 2, 2, 1), (4, 4, 1, 3), (7, 6, 3, 2)])
def test_a_token_of_each_row(
    library: ctypes.CDLL, rows: int, heads: int, shared: int, blocks: int, normed: bool, kept: torch.dtype
) -> None:
    case = StepCase(rows, heads, shared, kept)
    states = case.states.clone()
    norm = case.norm if normed else None
    call, out = step_arguments(case.tokens, states, case.at, STRONGEST, EPS, norm)
    library.emulated_delta_step(ctypes.byref(call), kept is torch.bfloat16, blocks)
    case.check(out, states, normed=normed)


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_chunks(library: ctypes.CDLL, name: str) -> None:
    case = CHUNK_CASES[name]
    call, made = chunk_arguments(*case.arguments())
    for each in made:
        each.fill_(math.nan)
    library.emulated_delta_chunks(ctypes.byref(call), len(case.chunks))
    case.check(made)
    others = [token for token in range(len(case.q)) if not any(start <= token < end for start, end in case.spans)]
    assert all(bool(each[others].isnan().all()) for each in made[:3])


@pytest.mark.parametrize("name", SPAN_CASES)
def test_spans(library: ctypes.CDLL, name: str) -> None:
    case = SPAN_CASES[name]
    given = case.arguments()
    take = library.emulated_scan_spans if case.rule == "scan" else library.emulated_delta_spans
    take(ctypes.byref(case.call(given)), len(case.spans), case.kept is torch.bfloat16)
    case.check(given[-3], given[-1])


@pytest.mark.parametrize("name", CONVOLUTION_CASES)
def test_convolutions(library: ctypes.CDLL, name: str) -> None:
    case = CONVOLUTION_CASES[name]
    inputs, out = case.arguments()
    call = convolution.arguments(inputs, out, chunk=CHUNK, silu=case.silu)
    library.emulated_convolve(ctypes.byref(call), case.taps, len(inputs.chunks))
    case.check(out)
