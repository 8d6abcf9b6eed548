"""Numbers of eight bits, in which KV pages may hold keys and values: how a number becomes one.

    e4m3    1 sign, 4 exponent, 3 mantissa bits     up to 448       three significant bits and the leading one
    e5m2    1 sign, 5 exponent, 2 mantissa bits     up to 57344     two of them, a wider range

A stored number stands for itself times a scale. Rounding is to nearest, ties to even. A finite number beyond the range
becomes the largest of its sign, never infinite. What is not finite becomes NaN, so that it is still noticed later.
Micikevicius et al., "FP8 formats for deep learning" (2022); e4m3 is the variant without infinities.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""dtype -> its largest finite number."""
FORMATS = {torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}
"""Numbers by which our kernels identify these dtypes; 0 is any other dtype, which they read and write unchanged."""


def format_of(dtype: torch.dtype) -> int:
    """Returns the number by which kernels know how stored numbers of this dtype are written."""
    return FORMATS.get(dtype, 0)


def to_stored(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Returns x / scale in this dtype, of the same shape. Dtypes with more than eight bits take x as it is: scale must
    be 1.

    x is multiplied by the reciprocal of the scale, rounded to float32, as all implementations do.
    """
    if dtype not in LARGEST:
        return x.to(dtype)
    wide, largest = x.float(), LARGEST[dtype]
    # Times 0, what is not finite is NaN.
    return (wide * (1.0 / scale)).clamp_(-largest, largest).add_(wide * 0.0).to(dtype)


def bits(x: Tensor) -> Tensor:
    """Returns eight-bit numbers as integers, in the same memory, since torch cannot scatter them otherwise; others as
    they are.
    """
    return x.view(torch.uint8) if x.dtype in LARGEST else x


def all_finite(x: Tensor) -> bool:
    """True if every number is finite."""
    broken = x.isnan() if x.dtype is torch.float8_e4m3fn else ~x.isfinite()  # e4m3 has no infinities
    return not bool(broken.any())
