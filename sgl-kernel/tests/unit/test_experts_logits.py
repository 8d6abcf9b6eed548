"""The logits of a router: the CUDA source, compiled as C++ with a fiber for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from logits_case import LOGITS_CASES

from mysgl_kernel.cpu.toolchain import find_gxx
from mysgl_kernel.experts_logits import TILES, arguments, best_tile, fits

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")


@pytest.fixture(scope="module")
def library(emulated: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    return emulated("emulated_logits.cpp")


@pytest.mark.parametrize("tile", range(len(TILES)))
@pytest.mark.parametrize("name", LOGITS_CASES)
def test_against_float64(library: ctypes.CDLL, name: str, tile: int) -> None:
    case = LOGITS_CASES[name]
    given = case.arguments()
    library.emulated_logits(ctypes.byref(arguments(*given)), tile)
    case.check(*given)


def test_all_tiles_have_the_same_bits(library: ctypes.CDLL) -> None:
    found = []
    for tile in range(len(TILES)):
        given = LOGITS_CASES["two rounds"].arguments()
        library.emulated_logits(ctypes.byref(arguments(*given)), tile)
        found.append(given[-1])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_every_multiprocessor_has_one_tile_at_most() -> None:
    assert [best_tile(rows, 128) for rows in (1, 256, 257, 400, 512, 1056, 1057)] == [0, 0, 1, 1, 1, 2, None]
    assert [best_tile(rows, 512) for rows in (64, 65, 128, 129, 256, 264, 265)] == [0, 1, 1, 2, 2, None, None]


def test_what_fits() -> None:
    x, weight = torch.zeros(64, 2048, dtype=torch.bfloat16), torch.zeros(128, 2048, dtype=torch.bfloat16)
    assert fits(x, weight, None) and fits(x, weight, weight[0, :128])
    assert not fits(x.float(), weight, None) and not fits(x, weight, weight[0, :128].float())
    assert not fits(x[:, :2000], weight[:, :2000].contiguous(), None)
    assert not fits(x[:, 1:33], weight[:, :32].contiguous(), None), "not aligned"
    assert not fits(x.new_zeros(1057, 2048), weight, None), "too many"
    assert not fits(x[:0], weight, None)
