"""Matrix products with weights of eight-bit integers, a factor for each output. Activations are not rounded.

The layout of a packed weight is the platform's. Without a kernel for it, a weight is widened anew in every call.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.kernels.activation import Activation, gated
from mysglang.srt.kernels.op import Op


def _int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """[N, input] -> [N, output], for a weight [output, input] int8 that may have been packed; scales: [output] float32.

    The products are those with weight * scales.
    """
    return F.linear(x, (weight.float() * scales[:, None]).to(x.dtype), bias)


def _int8_gated_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, activation: Activation
) -> Tensor:
    """[N, input] -> [N, output / 2]: act(the first half of the products) * (the second)."""
    return gated[activation](int8_linear(x, weight, scales, bias))


def _pack_int8_weight(weight: Tensor) -> Tensor:
    """The weight in the form that `int8_linear` is quickest with: itself, or a copy that nothing else may look into."""
    return weight


def _unpack_int8_weight(weight: Tensor) -> Tensor:
    """The opposite."""
    return weight


int8_linear = Op("int8_linear", reference=_int8_linear, cpu="mysglang.srt.kernels.cpu.packed_int8:int8_linear")
int8_gated_linear = Op(
    "int8_gated_linear", reference=_int8_gated_linear, cpu="mysglang.srt.kernels.cpu.packed_int8:int8_gated_linear"
)
pack_int8_weight = Op(
    "pack_int8_weight", reference=_pack_int8_weight, cpu="mysglang.srt.kernels.cpu.packed_int8:pack_int8_weight"
)
unpack_int8_weight = Op(
    "unpack_int8_weight", reference=_unpack_int8_weight, cpu="mysglang.srt.kernels.cpu.packed_int8:unpack_int8_weight"
)
