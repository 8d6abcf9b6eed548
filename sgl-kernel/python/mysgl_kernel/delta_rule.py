"""The gated delta rule for one new token of many rows, and for prompts chunk by chunk: `csrc/states/delta_step.cuh` and
`delta_chunks.cuh`, which say how they work. States are taken through chunks by `spans.py`.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_float, c_int, c_long, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream, multiprocessors
from mysgl_kernel.spans import ARCHS, CHUNK, DIM, STATES, TRAITS, check_rows

MOST_SHARED = 8
"""Value heads that may share a key head in prompts."""

_STEP, _CHUNKS = (Library(f"states/{name}.cu", archs=ARCHS, traits=TRAITS) for name in ("delta_step", "delta_chunks"))


class ChunksCall(Structure):
    """`Chunks` of delta_chunks.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "a", "b", "log_rate", "time_bias", "cuts", "chunks")),
        *((name, c_void_p) for name in ("written", "taken", "inside", "factors")),
        *((f"{name}_stride", c_long) for name in ("q", "k", "v", "a", "b")),
        *((name, c_int) for name in ("tokens", "heads", "shared")),
        *((name, c_float) for name in ("strongest", "eps")),
    )


class StepCall(Structure):
    """`Params` of delta_step.cuh, which says what the fields mean."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "a", "b", "log_rate", "time_bias", "matrix", "at", "out")),
        *((name, c_void_p) for name in ("gate", "gain")),
        *((f"{name}_stride", c_long) for name in ("q", "k", "v", "a", "b", "gate")),
        ("absent", c_long),
        *((name, c_int) for name in ("rows", "heads", "shared")),
        *((name, c_float) for name in ("strongest", "eps", "norm_eps")),
    )


class Norm(NamedTuple):
    """The norm of what a head reads, and the gate that it meets: `rms_norm(x) * gain * silu(gate)`."""

    gain: Tensor
    """[DIM] bfloat16"""
    gate: Tensor
    """[R, heads, DIM] bfloat16, the heads of a row side by side, rows at even distances."""
    eps: float


class Tokens(NamedTuple):
    """Inputs of R tokens, or one of each of R rows."""

    q: Tensor
    """[R, key_heads, DIM] bfloat16, as k and v with rows at distances of multiples of 8, aligned to 16 bytes."""
    k: Tensor
    """[R, key_heads, DIM] bfloat16"""
    v: Tensor
    """[R, heads, DIM] bfloat16"""
    a: Tensor
    """[R, heads] bfloat16, what decays are made of."""
    b: Tensor
    """[R, heads] bfloat16, what strengths are made of."""
    log_rate: Tensor
    """[heads] float32"""
    time_bias: Tensor
    """[heads] float32"""


STRIDED = 5
"""How many of these have a row for each token."""


class Chunks(NamedTuple):
    """Results for T tokens that do not depend on states."""

    written: Tensor
    """[T, heads, DIM] bfloat16: what the tokens of a chunk would write were the state 0."""
    taken: Tensor
    """[T, heads, DIM] bfloat16: how much of the state they take away from it."""
    inside: Tensor
    """[T, heads, CHUNK] bfloat16: how much a token reads of what each token of its chunk writes."""
    factors: Tensor
    """[3, heads, T] float32: what keys and queries are multiplied by, and at the first token of each chunk the decay
    of all of it.
    """


def available() -> bool:
    """True if the present device runs both. Compiles them if necessary."""
    return _STEP.available() and _CHUNKS.available()


def take_chunks(
    given: Tokens,
    cuts: Tensor,
    chunks: Tensor,
    strongest: float,
    eps: float,
) -> Chunks:
    """Returns what chunks of CHUNK tokens make by themselves. Tokens in no chunk are left undefined.

    strongest and eps as of `step`. cuts: [S, 5] int32, of
    which the second number is read: the end of a span. chunks: [C, 2] int32, the first token of each chunk, and its
    span. A chunk that begins behind its span has no tokens.
    """
    call, made = chunk_arguments(given, cuts, chunks, strongest, eps)
    _launch_chunks()(byref(call), len(chunks), current_stream(given.v))
    return made


def chunk_arguments(
    given: Tokens,
    cuts: Tensor,
    chunks: Tensor,
    strongest: float,
    eps: float,
) -> tuple[ChunksCall, Chunks]:
    """Returns the arguments of the kernel of `take_chunks`, and the tensors that it writes."""
    q, v = given.q, given.v
    tokens, heads, dim = v.shape
    shared = heads // q.shape[1]
    assert dim == DIM and heads % q.shape[1] == 0 and shared <= MOST_SHARED
    _check(given)
    assert cuts.shape[1] == 5 and chunks.shape[1] == 2 and cuts.dtype is chunks.dtype is torch.int32
    assert cuts.is_contiguous() and chunks.is_contiguous()
    made = Chunks(
        written=torch.empty(tokens, heads, dim, dtype=v.dtype, device=v.device),
        taken=torch.empty(tokens, heads, dim, dtype=v.dtype, device=v.device),
        inside=torch.empty(tokens, heads, CHUNK, dtype=v.dtype, device=v.device),
        factors=torch.empty(3, heads, tokens, dtype=torch.float32, device=v.device),
    )
    pointers = [each.data_ptr() for each in (*given, cuts, chunks, *made)]
    return ChunksCall(*pointers, *(x.stride(0) for x in given[:STRIDED]), tokens, heads, shared, strongest, eps), made


def step(
    given: Tokens,
    matrix: Tensor,
    at: Tensor,
    strongest: float,
    eps: float,
    norm: Norm | None = None,
) -> Tensor:
    """Updates the states of rows with one token of each. Returns what the tokens read, [R, heads, DIM] bfloat16, zeros
    for rows without a state.

    matrix: [N, heads, DIM, DIM] in one of STATES, dense, updated. at: [R] int64 entries of the rows, distinct but for
    N - 1: rows without a state. strongest: upper bound of strengths. eps: added to squared lengths of queries and keys.
    norm: what the result goes through before it is returned.
    """
    call, out = step_arguments(given, matrix, at, strongest, eps, norm)
    blocks = min(call.rows * call.heads, multiprocessors(out.device))
    _launch_step()(byref(call), matrix.dtype is torch.bfloat16, blocks, current_stream(out))
    return out


def step_arguments(
    given: Tokens, matrix: Tensor, at: Tensor, strongest: float, eps: float, norm: Norm | None
) -> tuple[StepCall, Tensor]:
    """Returns the arguments of the kernel of `step`, and the tensor that it writes."""
    q, v = given.q, given.v
    rows, heads, dim = v.shape
    assert matrix.shape[1:] == (heads, dim, dim) and dim == DIM and matrix.dtype in STATES and matrix.is_contiguous()
    assert heads % q.shape[1] == 0 and at.dtype is torch.int64 and at.is_contiguous() and len(at) == rows
    _check(given)
    out = torch.empty(rows, heads, dim, dtype=v.dtype, device=v.device)
    call = StepCall(
        *(each.data_ptr() for each in (*given, matrix, at, out)),
        None,
        None,
        *(each.stride(0) for each in given[:STRIDED]),
        0,
        len(matrix) - 1,
        rows,
        heads,
        heads // q.shape[1],
        strongest,
        eps,
    )
    if norm is not None:
        gain, gate, call.norm_eps = norm
        assert gain.shape == (dim,) and gate.shape == out.shape and gate.stride()[1:] == (dim, 1)
        assert gain.dtype is gate.dtype is torch.bfloat16 and gate.stride(0) % 2 == gate.data_ptr() % 4 == 0
        call.gain, call.gate, call.gate_stride = gain.data_ptr(), gate.data_ptr(), gate.stride(0)
    return call, out


def _check(given: Tokens) -> None:
    q, k, v, a, b, log_rate, time_bias = given
    assert q.shape == k.shape and a.shape == b.shape == v.shape[:2]
    assert all(each.dtype is torch.bfloat16 for each in (q, k, v, a, b)) and a.stride(1) == b.stride(1) == 1
    assert all(each.dtype is torch.float32 and each.is_contiguous() for each in (log_rate, time_bias))
    check_rows(q, k, v)


@cache
def _launch_step() -> Launch:
    return _STEP.function("mysgl_delta_step", POINTER(StepCall), c_int, c_int, c_void_p)


@cache
def _launch_chunks() -> Launch:
    return _CHUNKS.function("mysgl_delta_chunks", POINTER(ChunksCall), c_int, c_void_p)
