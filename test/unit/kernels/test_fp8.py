"""Numbers of eight bits: each becomes the nearest that there is, by every implementation that runs here."""

import pytest
import torch

from fixtures.stored_numbers import every_border, kept
from fixtures.triton_on_cpu import run_interpreted
from mysglang.srt.kernels.fp8 import LARGEST, all_finite, to_stored

BOTH = pytest.mark.parametrize("dtype", LARGEST)

TRITON = """
import triton, triton.language as tl
from mysglang.srt.kernels.cuda.fp8 import from_stored, to_stored
from mysglang.srt.kernels import fp8
from fixtures.stored_numbers import every_border

@triton.jit
def _write(x, y, inverse, FORMAT: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, to_stored(tl.load(x + at), inverse, FORMAT))

@triton.jit
def _read(x, y, FORMAT: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(y + at, from_stored(tl.load(x + at), y.dtype.element_ty, FORMAT))

for dtype in fp8.LARGEST:
    for given in (torch.float32, torch.bfloat16):
        for scale in (1.0, 0.37):
            x = every_border(dtype, scale).to(given)
            found = torch.empty(len(x), dtype=torch.uint8)
            _write[(1,)](x, found, 1 / scale, fp8.format_of(dtype), len(x))
            written, expected = found.view(dtype).float(), fp8.to_stored(x, dtype, scale).float()
            assert torch.equal(written.nan_to_num(7.0), expected.nan_to_num(7.0))
            assert torch.equal(written.isnan(), expected.isnan())
    codes = torch.arange(256, dtype=torch.uint8)
    for wanted in (torch.float32, torch.bfloat16, torch.float16):
        found = torch.empty(256, dtype=wanted)
        _read[(1,)](codes, found, fp8.format_of(dtype))
        assert torch.equal(found.nan_to_num(7.0), codes.view(dtype).to(wanted).nan_to_num(7.0))
print("all agree")
"""


@BOTH
@pytest.mark.parametrize("scale", [1.0, 0.37, 16.0])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_the_nearest(dtype: torch.dtype, scale: float, given: torch.dtype) -> None:
    x = every_border(dtype, scale).to(given)
    read = (to_stored(x, dtype, scale).double() * scale).float()
    assert torch.equal(read.nan_to_num(7.0), kept(x, dtype, scale).nan_to_num(7.0))
    assert torch.equal(read.isnan(), ~x.isfinite())


@BOTH
def test_what_is_too_large_is_the_largest(dtype: torch.dtype) -> None:
    x = torch.tensor([1e6, -1e6, 1e38, -1e38, 3.3e38])
    assert to_stored(x, dtype, 0.5).float().abs().unique().tolist() == [LARGEST[dtype]]


@BOTH
def test_what_is_not_finite_is_found(dtype: torch.dtype) -> None:
    x = torch.ones(3, 4)
    assert all_finite(to_stored(x, dtype, 1.0)) and all_finite(x)
    for broken in (float("nan"), float("inf"), float("-inf")):
        x[1, 2] = broken
        assert not all_finite(to_stored(x, dtype, 1.0)) and not all_finite(x)


def test_triton_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TRITON).strip() == "all agree"
