"""Mixtures of experts whose bfloat16 weights are packed for our C++ kernel; `experts` beside this computes the others.

The kernel reads the routing itself, so a recorded step has one call of one shape. With `alike` a row gets the same bits
whatever the other rows are, if the weights are packed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mysgl_kernel.cpu import experts as packed
from mysgl_kernel.cpu.gemm import ACTIVATIONS
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.cpu import experts
from mysglang.srt.kernels.cpu.native import is_matrix
from mysglang.srt.kernels.experts import Biases, Scales

available = packed.available


def fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Implements the op `fused_experts`. `kernels/experts.py` describes its arguments and result."""
    if packed.is_packed(gate_up) and activation in ACTIVATIONS and is_matrix(x):
        return packed.experts(x, gate_up, down, ids, gates, activation=activation, biases=biases, alike=alike)
    return experts.fused_experts(x, unpack_experts(gate_up), unpack_experts(down), ids, gates, activation, biases)


def int8_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    scales: Scales,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
    *,
    alike: bool = False,
) -> Tensor:
    """Implements the op `int8_fused_experts`. `kernels/experts.py` describes its arguments and result."""
    if packed.is_packed(gate_up) and activation in ACTIVATIONS and is_matrix(x):
        return packed.experts(
            x, gate_up, down, ids, gates, activation=activation, scales=scales, biases=biases, alike=alike
        )
    plain = unpack_experts(gate_up), unpack_experts(down)
    return experts.int8_fused_experts(x, *plain, scales, ids, gates, activation, biases)


def pack_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Implements the op `pack_experts`. `kernels/experts.py` describes its arguments and result."""
    return _pack(gate_up, down) if gate_up.dtype is torch.bfloat16 else (gate_up, down)


def pack_int8_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Implements the op `pack_int8_experts`. `kernels/experts.py` describes its arguments and result."""
    return _pack(gate_up, down)


def unpack_experts(weights: Tensor) -> Tensor:
    """Implements the op `unpack_experts`. `kernels/experts.py` describes its arguments and result."""
    return packed.unpack(weights) if packed.is_packed(weights) else weights


def _pack(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Packs both weights, or neither: the kernel has no experts without a gate."""
    gated = gate_up.shape[1] == 2 * down.shape[2]
    if gated and packed.packs(gate_up) and packed.packs(down):
        return packed.pack(gate_up), packed.pack(down)
    return gate_up, down
