"""Products with experts on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from product_case import PRODUCT_CASES, ProductCase

from mysgl_kernel.experts_products import multiply_blocks

MANY: dict[str, Callable[..., ProductCase]] = {
    "a prompt": partial(
        ProductCase, experts=40, rows=3000, shared=4, inputs=1032, width=392, gate="silu", largest=2000
    ),
    "a prompt, without a gate": partial(
        ProductCase, experts=40, rows=12_000, shared=1, inputs=392, width=1032, biased=True
    ),
}


@pytest.mark.parametrize("name", [*PRODUCT_CASES, *MANY])
def test_products(name: str) -> None:
    case = {**PRODUCT_CASES, **MANY}[name](device="cuda")
    compute(case)
    case.check()
    found = case.out.clone()
    compute(case)
    assert torch.equal(case.out, found)


def compute(case: ProductCase) -> None:
    case.blocks.taken.zero_()
    multiply_blocks(case.x, case.weights, case.bias, case.out, case.blocks, case.shared, case.gate)
