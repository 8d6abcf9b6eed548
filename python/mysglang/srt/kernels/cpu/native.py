"""Our C++ kernels (`mysgl_kernel.cpu`) for tensors of the dtype and layout that they read; for the rest, torch.

Dtypes and shapes alone decide which one is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel.cpu import rows
from mysglang.srt.kernels import activation as activations
from mysglang.srt.kernels import norm, sampling
from mysglang.srt.kernels.cpu import rotary
from mysglang.srt.kernels.cpu import sampling as torch_sampling
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.kernels.rotary import Norms
from mysglang.srt.kernels.sampling import Filters

available = rows.available

GAINS = (torch.bfloat16, torch.float32)
"""Dtypes of a norm's weight."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implements the op `rms_norm`. `kernels/norm.py` describes its arguments and result."""
    if takes_norm(x, weight):
        return rows.rms_norm(x, weight, eps)
    return norm.rms_norm.reference(x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Implements the op `fused_add_rms_norm`. `kernels/norm.py` describes its arguments and result."""
    if takes_norm(x, weight, residual):
        return rows.rms_norm(x, weight, eps, residual), residual
    return norm.fused_add_rms_norm.reference(x, residual, weight, eps)


def silu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `silu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    if takes_gate(x):
        return rows.gated(x, "silu")
    return activations.silu_and_mul.reference(x)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_tanh_and_mul`. `kernels/activation.py` describes its arguments and result."""
    if takes_gate(x):
        return rows.gated(x, "gelu_tanh")
    return activations.gelu_tanh_and_mul.reference(x)


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norms: Norms | None,
    k_cache: Tensor,
    v_cache: Tensor,
    locations: Tensor,
    scales: KvScales = UNSCALED,
) -> None:
    """Implements the op `rope_and_store`. `kernels/rotary.py` describes its arguments and result."""
    if takes_rope((q, k, v), cos_sin, norms, (k_cache, v_cache)):
        rows.rope_and_store(q, k, v, positions, cos_sin, norms, k_cache, v_cache, locations, scales)
    else:
        rotary.rope_and_store(q, k, v, positions, cos_sin, norms, k_cache, v_cache, locations, scales)


def greedy_tokens(logits: Tensor) -> Tensor:
    """Implements the op `greedy_tokens`. `kernels/sampling.py` describes its arguments and result."""
    if is_matrix(logits) and logits.shape[1] > 0:
        return rows.greedy_tokens(logits)
    return sampling.greedy_tokens.reference(logits)


def draw_tokens(logits: Tensor, uniforms: Tensor, temperature: Tensor, filters: Filters) -> Tensor:
    """Implements the op `draw_tokens`. `kernels/sampling.py` describes its arguments and result. A row's token depends
    on that row alone.
    """
    columns = [column for column in (uniforms, temperature, *filters) if column is not None]
    if logits.dtype is torch.float32 and logits.stride(1) == 1 and all(column.is_contiguous() for column in columns):
        return rows.draw_tokens(logits, uniforms, temperature, *filters)
    return torch_sampling.draw_tokens(logits, uniforms, temperature, filters)


def is_matrix(x: Tensor) -> bool:
    """True if x is bfloat16 rows, each dense."""
    return x.dtype is torch.bfloat16 and x.dim() == 2 and x.stride(1) == 1


def takes_norm(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool:
    """True if the kernel can normalise these rows, and add them to this residual stream, which it writes in place."""
    streams = residual is None or (is_matrix(residual) and residual.is_contiguous())
    return is_matrix(x) and weight.dtype in GAINS and streams


def takes_gate(x: Tensor) -> bool:
    """True if the kernel can apply the gate to these rows."""
    return is_matrix(x) and x.is_contiguous()


def takes_rope(
    projections: tuple[Tensor, ...], cos_sin: Tensor, norms: Norms | None, caches: tuple[Tensor, Tensor]
) -> bool:
    """True if the kernel can rotate these queries and keys, and store keys and values in these caches."""
    dense = cos_sin.is_contiguous() and all(cache.is_contiguous() for cache in caches)
    plain = norms is None or norms[0].dtype is torch.bfloat16
    return dense and plain and caches[0].dtype in rows.FORMATS and all(is_matrix(x) for x in projections)
