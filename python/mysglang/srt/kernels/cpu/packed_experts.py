"""Mixtures of experts whose bfloat16 weights our C++ kernel has packed; the others as in `experts` beside this.

The kernel reads the routing itself: for whoever records a step, it is one call of one shape.
"""

from __future__ import annotations

from torch import Tensor

from mysgl_kernel.cpu import experts as packed
from mysgl_kernel.cpu.gemm import ACTIVATIONS
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.cpu import experts
from mysglang.srt.kernels.cpu.native import is_matrix

available = packed.available


def fused_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, gates: Tensor, activation: Activation
) -> Tensor:
    """See `kernels/experts.py`."""
    both = packed.is_packed(gate_up) and packed.is_packed(down)
    if both and activation in ACTIVATIONS and is_matrix(x):
        return packed.experts(x, gate_up, down, ids, gates, activation=activation)
    return experts.fused_experts(x, gate_up, down, ids, gates, activation)


def pack_experts(weights: Tensor) -> Tensor:
    """See `kernels/experts.py`. Of packed weights, those of each expert are a packed weight of `kernels/gemm.py`."""
    return packed.pack(weights) if packed.packs(weights) else weights


def unpack_experts(weights: Tensor) -> Tensor:
    """See `kernels/experts.py`."""
    return packed.unpack(weights) if packed.is_packed(weights) else weights
