"""Convolutions of prompts by the kernels' package, where threads walk through tokens. Windows are kept, and what that
kernel is not written for is computed, by `short_convolution` beside this.

The shape alone decides which kernel is used, so it is the same in every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel import convolution
from mysglang.srt.kernels.cuda import short_convolution
from mysglang.srt.kernels.states import CHUNK, Runs

available = convolution.available


def conv_runs(
    x: Tensor, weight: Tensor, recent: Tensor, runs: Runs, bias: Tensor | None = None, *, silu: bool = True
) -> Tensor:
    """Implements the op `conv_runs`. `kernels/short_convolution.py` describes its arguments and result."""
    if not _fits(x, weight, recent, bias):
        return short_convolution.conv_runs(x, weight, recent, runs, bias, silu=silu)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    inputs = convolution.Inputs(x, weight, bias, recent, runs.cuts, runs.chunks)
    convolution.convolve(inputs, out, chunk=CHUNK, silu=silu)
    short_convolution.keep_windows(x, recent, runs)
    return out


def _fits(x: Tensor, weight: Tensor, recent: Tensor, bias: Tensor | None) -> bool:
    """True if the kernel is written for these dtypes and sizes, and can load channels in whole vectors."""
    tensors = [each for each in (x, weight, recent, bias) if each is not None]
    return (
        all(each.dtype is torch.bfloat16 and each.data_ptr() % 16 == 0 for each in tensors)
        and weight.shape[1] in convolution.TAPS
        and x.shape[1] % convolution.CHANNELS == 0
        and x.stride(0) % convolution.CHANNELS == 0
        and weight.is_contiguous()
    )
