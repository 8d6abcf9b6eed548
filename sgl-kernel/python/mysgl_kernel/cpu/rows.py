"""Operations on each row or head by itself, bfloat16 if nothing else is said: `csrc/cpu/rows.cpp`."""

from __future__ import annotations

from ctypes import c_bool, c_float, c_int, c_long, c_void_p
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.cpu.gemm import ACTIVATIONS
from mysgl_kernel.cpu.library import CpuLibrary

FORMATS = {torch.bfloat16: 0, torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}
"""dtype -> the number by which `include/cpu/stored.h` names the format of KV pages."""

_LIBRARY = CpuLibrary("cpu/rows.cpp")

available = _LIBRARY.available


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """[N, width], rows at any distance -> dense [N, width]. residual: dense; x is added to it first.

    weight: [width], bfloat16 or float32.
    """
    out = x.new_empty(x.shape)
    residual_at = None if residual is None else residual.data_ptr()
    gain = (weight.data_ptr(), weight.dtype is torch.float32)
    _rms_norm()(out.data_ptr(), x.data_ptr(), x.stride(0), residual_at, *gain, *x.shape, eps)
    return out


def gated(x: Tensor, activation: str) -> Tensor:
    """Dense [N, 2 * width] -> [N, width]: act(first half) * second half."""
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    _gated()(out.data_ptr(), x.data_ptr(), *out.shape, ACTIVATIONS[activation])
    return out


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    k_cache: Tensor,
    v_cache: Tensor,
    locations: Tensor,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Norm each head of q and k, if norms are given, turn it in place, and store k and v in their places in the caches.

    q: [T, heads * dim]; k, v: [T, kv_heads * dim]; only their last dimension is dense. positions, locations: [T] int64.
    cos_sin: [max_position, dim] float32, cosines, then sines. Caches: [slots, kv_heads, dim], dense, of one of
    `FORMATS`. scales: numbers of eight bits hold keys and values divided by them.
    """
    _, kv_heads, dim = k_cache.shape
    q_norm, k_norm, eps = (norms[0].data_ptr(), norms[1].data_ptr(), norms[2]) if norms else (None, None, 0.0)
    _rope_and_store()(
        *(q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
        *(positions.data_ptr(), cos_sin.data_ptr(), q_norm, k_norm, eps),
        *(k_cache.data_ptr(), v_cache.data_ptr(), locations.data_ptr()),
        *(q.shape[0], q.shape[1] // dim, kv_heads, dim),
        *(FORMATS[k_cache.dtype], 1.0 / scales[0], 1.0 / scales[1]),
    )


def greedy_tokens(logits: Tensor) -> Tensor:
    """[S, vocab], rows at any distance -> [S] int64: the first of the largest; -1 where a logit is not finite."""
    tokens = logits.new_empty(logits.shape[0], dtype=torch.int64)
    _greedy()(tokens.data_ptr(), logits.data_ptr(), logits.stride(0), *logits.shape)
    return tokens


def draw_tokens(
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Draws a token of each row: float32 [S, vocab], rows at any distance -> [S] int64. A row with NaN gets any token.

    uniforms: [S] float64 in [0, 1). temperature, top_p, min_p: [S] float32. top_k: [S] int32. All are dense. A filter
    that is None lets every token pass.
    """
    tokens = logits.new_empty(logits.shape[0], dtype=torch.int64)
    filters = [None if values is None else values.data_ptr() for values in (top_k, top_p, min_p)]
    numbers = (uniforms.data_ptr(), temperature.data_ptr())
    _draw()(tokens.data_ptr(), logits.data_ptr(), logits.stride(0), *numbers, *filters, *logits.shape)
    return tokens


@cache
def _rms_norm() -> Launch:
    arrays = (c_void_p, c_void_p, c_long, c_void_p, c_void_p)
    return _LIBRARY.function("mysgl_rms_norm", *arrays, c_bool, c_long, c_long, c_float)


@cache
def _gated() -> Launch:
    return _LIBRARY.function("mysgl_gated", c_void_p, c_void_p, c_long, c_long, c_int)


@cache
def _rope_and_store() -> Launch:
    rows = (c_void_p, c_long) * 3
    turning = (c_void_p, c_void_p, c_void_p, c_void_p, c_float)
    storing = (c_void_p, c_void_p, c_void_p)
    sizes = (c_long, c_long, c_long, c_long)
    return _LIBRARY.function("mysgl_rope_and_store", *rows, *turning, *storing, *sizes, c_int, c_float, c_float)


@cache
def _greedy() -> Launch:
    return _LIBRARY.function("mysgl_greedy", c_void_p, c_void_p, c_long, c_long, c_long)


@cache
def _draw() -> Launch:
    return _LIBRARY.function("mysgl_draw", c_void_p, c_void_p, c_long, *(c_void_p,) * 5, c_long, c_long)
