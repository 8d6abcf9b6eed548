"""Chunks of the gated delta rule: the CUDA source, compiled as C++ with a fiber for each thread, against the definition
in float64.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
from delta_case import CHUNK_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.delta_rule import arguments

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_delta.cpp")


@pytest.mark.parametrize("name", CHUNK_CASES)
def test_against_float64(library: ctypes.CDLL, name: str) -> None:
    case = CHUNK_CASES[name]
    call, made = arguments(*case.arguments())  # type: ignore[arg-type]
    for each in made:
        each.fill_(math.nan)
    library.emulated_delta_chunks(ctypes.byref(call), len(case.chunks))
    case.check(made)
    others = [token for token in range(len(case.q)) if not any(start <= token < end for start, end in case.spans)]
    assert all(bool(each[others].isnan().all()) for each in made[:3])
