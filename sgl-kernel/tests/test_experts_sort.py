"""The sort of pairs by expert on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sort_case import SORT_CASES, SortCase

from mysgl_kernel.experts_sort import sort_pairs


@pytest.mark.parametrize("name", [*SORT_CASES, "many"])
def test_against_a_list(name: str) -> None:
    case = SORT_CASES.get(name, SortCase(2560, 512, 16))
    given = case.arguments("cuda")
    sort_pairs(*given)
    case.check(*given[:4])
