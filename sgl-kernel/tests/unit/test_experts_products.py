"""Products with experts: the CUDA source, compiled as C++ with a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from product_case import PRODUCT_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.experts_products import arguments

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_products.cpp")


@pytest.mark.parametrize("name", PRODUCT_CASES)
def test_products(library: ctypes.CDLL, name: str) -> None:
    case = PRODUCT_CASES[name]()
    weights, blocks = case.weights.flatten(0, 1), 2
    given = arguments(case.x, case.bias, case.out, case.blocks, case.shared, case.gate)
    library.emulated_multiply_blocks(
        ctypes.byref(given),
        ctypes.c_void_p(weights.data_ptr()),
        len(weights),
        case.gate is not None,
        blocks,
    )
    case.check()
