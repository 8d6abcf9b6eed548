"""Tokens of rows of logits, with penalties, biases, filters, draws and log-probabilities in one kernel:
`csrc/sampling/rows.cuh` describes the algorithm, `plain.cuh` that for rows with nothing but a temperature.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_int, c_int64, c_void_p
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream

ROW = np.dtype(
    [
        ("seed", "<i8"),
        ("line", "<i4"),
        ("top_k", "<i4"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("frequency", "<f4"),
        ("presence", "<f4"),
        ("repetition", "<f4"),
        ("top_logprobs", "<i4"),
        ("bias_begin", "<i4"),
        ("bias_end", "<i4"),
        ("forbidden_begin", "<i4"),
        ("forbidden_end", "<i4"),
        ("unused", "<i4"),
    ]
)
"""`Row` of row.cuh, which says what the fields mean."""
BIAS = np.dtype([("id", "<i4"), ("value", "<f4")])
"""`Bias` of row.cuh."""
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MOST_TOKENS = 320_000
"""Largest vocabulary: a block keeps an eighth of a row in shared memory, in five bytes a token."""

_LIBRARY = Library("sampling/rows.cu", archs=("90a", "100", "103"))


class Step(Structure):
    """`Step` of row.cuh, which says what the fields mean."""

    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab", c_int),
        ("most_logprobs", c_int),
        *((name, c_void_p) for name in ("rows", "bias", "counts", "greedy", "lengths", "slots", "newest", "tokens")),
        *((name, c_void_p) for name in ("logprobs", "top_values", "top_ids")),
    )


class RowLogprobs(NamedTuple):
    """Log-probabilities after temperature, before the filters, in one piece of memory."""

    packed: Tensor
    """[R * (1 + 2 N)] float32: all that follows, one after the other; ids are bits of int32."""
    chosen: Tensor
    """[R] float32, of the tokens. Undefined where a row's `top_logprobs` is -1."""
    top_values: Tensor
    """[R, N] float32 of the most likely tokens, the most likely first. Undefined beyond a row's `top_logprobs`."""
    top_ids: Tensor
    """[R, N] int32"""

    @classmethod
    def over(cls, packed: Tensor, rows: int) -> RowLogprobs:
        """Returns the parts of such a piece."""
        chosen, best = packed[:rows], packed[rows:].view(2, rows, (len(packed) - rows) // (2 * rows))
        return cls(packed, chosen, best[0], best[1].view(torch.int32))


def available() -> bool:
    """True if the present device runs it. Compiles it if necessary."""
    return _LIBRARY.available()


def sample_rows(
    logits: Tensor,
    rows: Tensor,
    bias: Tensor,
    counts: Tensor,
    greedy: Tensor,
    lengths: Tensor,
    slots: Tensor,
    newest: Tensor,
    top: int | None,
    plain: bool = False,
) -> tuple[Tensor, RowLogprobs | None]:
    """Returns the tokens [R] int64 of rows of logits [R, vocab], -1 where greedy is; written to newest[slots] too, 0
    for -1.

    rows: R or more items of ROW; bias: items of BIAS; both dense, of any dtype.
    counts: [lines, vocab] int32, twice the times that a token was generated, plus one if the prompt has it. The chosen
    tokens of rows with a line are counted.
    greedy: [R] int64, the likeliest tokens of the bare logits, -1 for a row with numbers that are not finite.
    lengths: [R] int32 tokens of each row's text so far. slots: [R] int64. newest: [slots] int64.
    top: N, how many most likely tokens are reported at most; None: no log-probabilities at all.
    plain: no row has anything but a temperature, or is greedy without edits; `top` is None. Tokens are the same.
    """
    assert top is None or not plain
    step, tokens, logprobs = arguments(logits, rows, bias, counts, greedy, lengths, slots, newest, top)
    _launch()(byref(step), len(logits), plain, DTYPES[logits.dtype], current_stream(logits))
    return tokens, logprobs


def arguments(
    logits: Tensor,
    rows: Tensor,
    bias: Tensor,
    counts: Tensor,
    greedy: Tensor,
    lengths: Tensor,
    slots: Tensor,
    newest: Tensor,
    top: int | None,
) -> tuple[Step, Tensor, RowLogprobs | None]:
    """Returns the kernel's arguments, and the tensors that it writes."""
    count, vocab = logits.shape
    assert logits.stride(1) == 1 and vocab <= MOST_TOKENS and rows.nbytes >= count * ROW.itemsize
    assert greedy.dtype is slots.dtype is newest.dtype is torch.int64 and lengths.dtype is torch.int32
    assert counts.dtype is torch.int32 and counts.is_contiguous()
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    logprobs = None
    if top is not None:
        packed = torch.empty(count * (1 + 2 * top), dtype=torch.float32, device=logits.device)
        logprobs = RowLogprobs.over(packed, count)
    step = Step(
        logits=logits.data_ptr(),
        stride=logits.stride(0),
        vocab=vocab,
        most_logprobs=top or 0,
        rows=rows.data_ptr(),
        bias=bias.data_ptr(),
        counts=counts.data_ptr(),
        greedy=greedy.data_ptr(),
        lengths=lengths.data_ptr(),
        slots=slots.data_ptr(),
        newest=newest.data_ptr(),
        tokens=tokens.data_ptr(),
    )
    if logprobs is not None:
        step.logprobs = logprobs.chosen.data_ptr()
        step.top_values, step.top_ids = logprobs.top_values.data_ptr(), logprobs.top_ids.data_ptr()
    return step, tokens, logprobs


@cache
def _launch() -> Launch:
    return _LIBRARY.function("mysgl_sample_rows", POINTER(Step), c_int, c_int, c_int, c_void_p)
