"""States that are taken through chunks on a GPU, against the same sums in float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mysgl_kernel.spans import take_delta_spans, take_scan_spans

sys.path.insert(0, str(Path(__file__).parent))
from span_case import SPAN_CASES

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper device"
)


@pytest.mark.parametrize("name", SPAN_CASES)
def test_spans(name: str) -> None:
    case = replace(SPAN_CASES[name], device="cuda")
    given, take = case.arguments(), take_scan_spans if case.rule == "scan" else take_delta_spans
    take(*given)
    case.check(given[-3], given[-1])
    again = case.arguments()
    take(*again)
    assert torch.equal(given[-3], again[-3]) and torch.equal(given[-1].nan_to_num(), again[-1].nan_to_num())
