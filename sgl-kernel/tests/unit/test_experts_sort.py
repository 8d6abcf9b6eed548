"""The sort of pairs by expert: the CUDA source, compiled as C++ with a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from sort_case import SORT_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.experts_sort import MOST_BYTES, MOST_EXPERTS, MOST_PAIRS, arguments, fits

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_sort.cpp")


@pytest.mark.parametrize("name", SORT_CASES)
def test_against_a_list(library: ctypes.CDLL, name: str) -> None:
    case = SORT_CASES[name]
    given = case.arguments()
    # The emulated block has an eighth of the threads.
    assert case.experts <= MOST_EXPERTS // 8
    status = library.emulated_sort_pairs(ctypes.byref(arguments(*given)))
    assert status == 0
    case.check(*given[:4])


def test_what_fits() -> None:
    assert fits(2560, 512, 640 * 16) and fits(MOST_PAIRS, 8, 2048) and not fits(MOST_PAIRS + 1, 8, 2048)
    assert not fits(10, MOST_EXPERTS + 1, 160) and not fits(10, 8, MOST_BYTES // 4)
