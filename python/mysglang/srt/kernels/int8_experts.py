"""Mixtures of experts whose weights are eight-bit integers, a factor for each output of each expert.

As `experts` and `int8_gemm` say it of other experts and of other such weights.
"""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, fused_experts
from mysglang.srt.kernels.op import Op

Scales = tuple[Tensor, Tensor]
"""float32 [E, 2 * inner] of gate and up, and [E, width] of down."""


def _int8_fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    scales: Scales,
    ids: Tensor,
    gates: Tensor,
    activation: Activation,
    biases: Biases = None,
) -> Tensor:
    """`fused_experts` with the weights times their scales. This reference widens all of them."""
    wide = [
        (weights.float() * each[..., None]).to(x.dtype) for weights, each in zip((gate_up, down), scales, strict=True)
    ]
    return fused_experts.reference(x, wide[0], wide[1], ids, gates, activation, biases)


def _pack_int8_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """As `pack_experts`."""
    return gate_up, down


def _unpack_int8_experts(weights: Tensor) -> Tensor:
    """As `unpack_experts`."""
    return weights


int8_fused_experts = Op(
    "int8_fused_experts",
    reference=_int8_fused_experts,
    cpu=(
        "mysglang.srt.kernels.cpu.packed_experts:int8_fused_experts",
        "mysglang.srt.kernels.cpu.experts:int8_fused_experts",
    ),
)
pack_int8_experts = Op(
    "pack_int8_experts",
    reference=_pack_int8_experts,
    cpu="mysglang.srt.kernels.cpu.packed_experts:pack_int8_experts",
)
unpack_int8_experts = Op(
    "unpack_int8_experts",
    reference=_unpack_int8_experts,
    cpu="mysglang.srt.kernels.cpu.packed_experts:unpack_experts",
)
