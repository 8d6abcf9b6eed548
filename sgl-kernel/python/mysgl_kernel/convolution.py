"""Causal convolutions of prompts: `csrc/states/convolution.cuh`, which says how they work."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int, c_long, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

TAPS = 3, 4
"""Newest tokens that a sum is over."""
CHANNELS = 8
"""Channels of a thread: a model has a multiple of them."""
PART = 32
"""Tokens of a thread: a chunk has a multiple of them."""

_LIBRARY = Library("states/convolution.cu", traits={"dtype": torch.bfloat16, "keeps_states": True})


class Convolution(Structure):
    """`Convolution` of convolution.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "bias", "recent", "cuts", "chunks", "out")),
        ("x_stride", c_long),
        *((name, c_int) for name in ("channels", "chunk", "silu")),
    )


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


class Inputs(NamedTuple):
    """Rows, and what their convolution needs. Floats are bfloat16, aligned to 16 bytes, and dense but for x. Others are
    int32, dense.
    """

    x: Tensor
    """[T, channels]; rows at distances of multiples of 8."""
    weight: Tensor
    """[channels, taps]."""
    bias: Tensor | None
    """[channels]."""
    recent: Tensor
    """[N, taps - 1, channels], what came before a row's first token."""
    cuts: Tensor
    """[S, 5]: first token of a span, the one after the last, the row's first token, the entry of `recent`, and a number
    that is not read.
    """
    chunks: Tensor
    """[C, 2]: the first of a chunk's tokens, and their span. A chunk that begins behind its span has no tokens."""


def convolve(inputs: Inputs, out: Tensor, *, chunk: int, silu: bool) -> None:
    """Fills `out` [T, channels], as x but dense, at the tokens of all chunks; others are left as they are. chunk: the
    tokens of each.
    """
    call = arguments(inputs, out, chunk=chunk, silu=silu)
    _launch()(byref(call), inputs.weight.shape[1], len(inputs.chunks), current_stream(out))


def arguments(inputs: Inputs, out: Tensor, *, chunk: int, silu: bool) -> Convolution:
    """Returns the kernel's arguments."""
    x, weight, bias, recent, cuts, chunks = inputs
    channels, taps = weight.shape
    assert taps in TAPS and channels % CHANNELS == 0 and chunk % PART == 0
    assert x.shape == out.shape and x.shape[1] == channels and recent.shape[1:] == (taps - 1, channels)
    tensors = [each for each in (x, weight, bias, recent, out) if each is not None]
    assert all(each.dtype is torch.bfloat16 and each.data_ptr() % 16 == 0 for each in tensors)
    assert x.stride(1) == 1 and x.stride(0) % CHANNELS == 0
    assert all(each.is_contiguous() for each in (*tensors[1:], cuts, chunks))
    assert cuts.shape[1] == 5 and chunks.shape[1] == 2 and cuts.dtype is chunks.dtype is torch.int32
    pointers = [None if each is None else each.data_ptr() for each in (*inputs, out)]
    return Convolution(*pointers, x.stride(0), channels, chunk, silu)


@cache
def _launch() -> Launch:
    return _LIBRARY.function("mysgl_convolve", POINTER(Convolution), c_int, c_int, c_void_p)
