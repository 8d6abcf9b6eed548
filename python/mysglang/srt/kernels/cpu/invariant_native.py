"""Our C++ kernels in deterministic inference, for the inputs that they support; `invariant` beside this computes the
others.

They are invariant as they are: a row belongs to one thread, which does the same to it wherever it stands, and a sum
goes along its row in one order (`csrc/cpu`). Only products sum in another order if AMX multiplies many rows, so here
they are asked for `alike`.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from mysgl_kernel.cpu import gemm as packed
from mysgl_kernel.cpu import rows
from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.cpu import invariant, native, packed_experts, packed_gemm
from mysglang.srt.kernels.kvcache import UNSCALED, KvScales
from mysglang.srt.kernels.rotary import Norms

available = rows.available


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Implements the op `linear`. `kernels/gemm.py` describes its arguments and result."""
    if packed.is_packed(weight):
        return packed_gemm.linear(x, weight, bias, alike=True)
    return invariant.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Implements the op `gated_linear`. `kernels/gemm.py` describes its arguments and result."""
    if packed.is_packed(weight):
        return packed_gemm.gated_linear(x, weight, bias, activation, alike=True)
    return gated[activation](linear(x, weight, bias))


int8_linear = partial(packed_gemm.int8_linear, alike=True)
int8_gated_linear = partial(packed_gemm.int8_gated_linear, alike=True)
fused_experts = partial(packed_experts.fused_experts, alike=True)
int8_fused_experts = partial(packed_experts.int8_fused_experts, alike=True)
"""Implement the ops of these names. `kernels/gemm.py` and `kernels/experts.py` describe their arguments and results."""


def silu_and_mul(x: Tensor) -> Tensor:
    """Implements the op `silu_and_mul`. `kernels/activation.py` describes its arguments and result."""
    if native.takes_gate(x):
        return native.silu_and_mul(x)
    return invariant.silu_and_mul(x)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Implements the op `gelu_tanh_and_mul`. `kernels/activation.py` describes its arguments and result."""
    if native.takes_gate(x):
        return native.gelu_tanh_and_mul(x)
    return invariant.gelu_tanh_and_mul(x)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implements the op `rms_norm`. `kernels/norm.py` describes its arguments and result."""
    if native.takes_norm(x, weight):
        return native.rms_norm(x, weight, eps)
    return invariant.rms_norm(x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Implements the op `fused_add_rms_norm`. `kernels/norm.py` describes its arguments and result."""
    if native.takes_norm(x, weight, residual):
        return native.fused_add_rms_norm(x, residual, weight, eps)
    return invariant.fused_add_rms_norm(x, residual, weight, eps)


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
    if native.takes_rope((q, k, v), cos_sin, norms, (k_cache, v_cache)):
        native.rope_and_store(q, k, v, positions, cos_sin, norms, k_cache, v_cache, locations, scales)
    else:
        invariant.rope_and_store(q, k, v, positions, cos_sin, norms, k_cache, v_cache, locations, scales)
