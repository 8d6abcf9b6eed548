"""The gated delta rule over prompts: CUDA sources, compiled as C++ with a fiber for each thread, against the definition
in float64.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch
from delta_case import CHUNK_CASES, SPAN_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.delta_rule import chunk_arguments, span_arguments

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_delta.cpp")


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_chunks(library: ctypes.CDLL, name: str) -> None:
    case = CHUNK_CASES[name]
    call, made = chunk_arguments(*case.arguments())  # type: ignore[arg-type]
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
    halved = case.kept is torch.bfloat16
    library.emulated_delta_spans(ctypes.byref(span_arguments(*given)), len(case.spans), halved)
    case.check(given[3], given[5])
