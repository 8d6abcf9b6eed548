"""Matrix products with weights, and the form of a weight that the device likes best.

A weight is of floating point, or of eight-bit integers with a factor for each output; activations are never rounded to
integers. The layout of a packed weight is the platform's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.op import Op


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies [N, input] -> [N, output] with a weight [output, input] that may have been packed."""
    return F.linear(x, weight, bias)


def _gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Computes act(x times the first half of the weight's rows) * (x times the second half): [N, input] -> [N, output /
    2].
    """
    return gated[activation](linear(x, weight, bias))


def _heads_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies each head's row with its own weight: [N, heads, input] -> [N, heads, output]. weight: [heads, output,
    input].
    """
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def _pack_linear_weight(weight: Tensor) -> Tensor:
    """Returns the weight in the form that `linear` is quickest with: itself, or a copy that nothing else may look
    into.
    """
    return weight


def _unpack_linear_weight(weight: Tensor) -> Tensor:
    """Returns the weight [output, input] that was given to `pack_linear_weight`."""
    return weight


linear = Op(
    "linear",
    reference=_linear,
    cpu=("mysglang.srt.kernels.cpu.packed_gemm:linear", "mysglang.srt.kernels.cpu.gemm:linear"),
    cuda=("mysglang.srt.kernels.cuda.wave_gemm:linear", "mysglang.srt.kernels.cuda.gemm:linear"),
    invariant={
        "cpu": ("mysglang.srt.kernels.cpu.invariant_native:linear", "mysglang.srt.kernels.cpu.invariant:linear"),
        "cuda": "mysglang.srt.kernels.cuda.invariant_gemm:linear",
    },
)
gated_linear = Op(
    "gated_linear",
    reference=_gated_linear,
    cpu="mysglang.srt.kernels.cpu.packed_gemm:gated_linear",
    cuda="mysglang.srt.kernels.cuda.wave_gemm:gated_linear",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant_native:gated_linear", "cuda": ()},
)
heads_linear = Op(
    "heads_linear",
    reference=_heads_linear,
    cuda="mysglang.srt.kernels.cuda.latent_rows:heads_linear",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant:heads_linear", "cuda": ()},
)
pack_linear_weight = Op(
    "pack_linear_weight",
    reference=_pack_linear_weight,
    cpu=("mysglang.srt.kernels.cpu.packed_gemm:pack_linear_weight", "mysglang.srt.kernels.cpu.gemm:pack_linear_weight"),
)
unpack_linear_weight = Op(
    "unpack_linear_weight",
    reference=_unpack_linear_weight,
    cpu=(
        "mysglang.srt.kernels.cpu.packed_gemm:unpack_linear_weight",
        "mysglang.srt.kernels.cpu.gemm:unpack_linear_weight",
    ),
)


def _int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies [N, input] -> [N, output] with an int8 weight [output, input] that may have been packed; scales:
    [output] float32.

    The products are those with weight * scales. This reference widens the weight in every call.
    """
    return F.linear(x, (weight.float() * scales[:, None]).to(x.dtype), bias)


def _int8_gated_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, activation: Activation
) -> Tensor:
    """Computes act(the first half of the products) * (the second half): [N, input] -> [N, output / 2]."""
    return gated[activation](int8_linear(x, weight, scales, bias))


def _pack_int8_weight(weight: Tensor) -> Tensor:
    """Returns the weight in the layout that is fastest for `int8_linear`: unchanged here, and a packed copy on some
    devices. Other code must not read a packed copy.
    """
    return weight


def _unpack_int8_weight(weight: Tensor) -> Tensor:
    """Returns the plain weight that was given to `pack_int8_weight`."""
    return weight


int8_linear = Op(
    "int8_linear",
    reference=_int8_linear,
    cpu="mysglang.srt.kernels.cpu.packed_gemm:int8_linear",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant_native:int8_linear"},
)
int8_gated_linear = Op(
    "int8_gated_linear",
    reference=_int8_gated_linear,
    cpu="mysglang.srt.kernels.cpu.packed_gemm:int8_gated_linear",
    invariant={"cpu": "mysglang.srt.kernels.cpu.invariant_native:int8_gated_linear"},
)
pack_int8_weight = Op(
    "pack_int8_weight", reference=_pack_int8_weight, cpu="mysglang.srt.kernels.cpu.packed_gemm:pack_int8_weight"
)
unpack_int8_weight = Op(
    "unpack_int8_weight", reference=_unpack_int8_weight, cpu="mysglang.srt.kernels.cpu.packed_gemm:unpack_int8_weight"
)
