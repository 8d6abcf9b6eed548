"""Chunks of the gated delta rule: the CUDA source, compiled as C++ with a fiber for each thread, against the definition
in float64.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from pathlib import Path

import pytest

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.delta_rule import arguments

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from delta_case import CHUNK_CASES  # noqa: E402

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("delta") / "delta.so"
    # Compilers of some distributions check each longjmp, and take one to another fiber's stack for an error.
    unchecked = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0"]
    options = ["-O1", *unchecked, "-std=c++17", "-shared", "-fPIC", "-w", "-o"]
    compiler = find_gxx()
    assert compiler is not None
    subprocess.run([compiler.path, *options, str(target), str(HERE / "emulated_delta.cpp")], check=True)
    return ctypes.CDLL(str(target))


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
