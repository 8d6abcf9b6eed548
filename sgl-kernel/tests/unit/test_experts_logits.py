"""The logits of a router: the CUDA source, compiled as C++ with a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from logits_case import LOGITS_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.experts_logits import MOST_TILES, arguments, fits, tiles

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_logits.cpp")


@pytest.mark.parametrize("name", LOGITS_CASES)
def test_against_float64(library: ctypes.CDLL, name: str) -> None:
    case = LOGITS_CASES[name]
    given = case.arguments()
    library.emulated_logits(ctypes.byref(arguments(*given)), tiles(case.rows, case.experts))
    case.check(*given)


def test_what_fits() -> None:
    x, weight = torch.zeros(64, 2048, dtype=torch.bfloat16), torch.zeros(128, 2048, dtype=torch.bfloat16)
    assert tiles(64, 128) == 32 and fits(x, weight, None) and fits(x, weight, weight[0, :128])
    assert not fits(x.float(), weight, None) and not fits(x, weight, weight[0, :128].float())
    assert not fits(x[:, :2000], weight[:, :2000].contiguous(), None)
    assert not fits(x[:, 1:33], weight[:, :32].contiguous(), None), "not aligned"
    assert not fits(x.new_zeros(MOST_TILES * 16, 32), weight[:17, :32].contiguous(), None)
    assert not fits(x[:0], weight, None)
