"""int8wo: the weights of linear layers as eight-bit integers, made of a plain checkpoint when it is loaded.

    w[o, i] ≈ q[o, i] * scale[o],   scale[o] = max |w[o, :]| / 127,   q rounded to nearest

Half the bytes that a decode step reads for them. Activations, embedding and logits stay as they are. Taking the
weights apart and rounding them again changes nothing: the largest of a row comes back as itself, so the scale is the
same, and the others are nearest to their own integer: bfloat16 is off by at most 2^-9 of a value, so a quotient of two
by at most 2^-8, and 127 times that is less than a half.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.int8_gemm import int8_gated_linear, int8_linear, pack_int8_weight, unpack_int8_weight
from mysglang.srt.layers.moe.method import ExpertsMethod
from mysglang.srt.layers.parameter import Section, WeightParameter, replace_parameter, restore_parameter
from mysglang.srt.layers.quantization.base import LinearMethod
from mysglang.srt.layers.quantization.unquantized import UnquantizedLinearMethod, create_weight

LARGEST = 127
LM_HEAD = "lm_head"
"""What the parameters of the projection to logits begin with."""


class Int8LinearMethod:
    """One weight [output, input] of int8, maybe packed, and `scales` [output] float32."""

    def create_weights(
        self, layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
    ) -> None:
        create_weight(layer, input_section, output_sections, dtype)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Round."""
        weight, scales = quantize(_tensor(layer, "weight"))
        replace_parameter(layer, "weight", pack_int8_weight(weight))
        layer.scales = scales

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """A weight of the values that were computed with."""
        if not isinstance(layer.weight, WeightParameter):
            layout = layouts["weight"]
            restore_parameter(layer, "weight", layout.filled(self.plain_weight(layer).to(layout.dtype)))
            del layer.scales

    def plain_weight(self, layer: nn.Module) -> Tensor:
        weight = _tensor(layer, "weight")
        if isinstance(weight, WeightParameter):
            return weight
        return unpack_int8_weight(weight).float() * _tensor(layer, "scales")[:, None]

    def dense_weight(self, layer: nn.Module) -> Tensor | None:
        return None

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return int8_linear(x, _tensor(layer, "weight"), _tensor(layer, "scales"), bias)

    def apply_gated(self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        return int8_gated_linear(x, _tensor(layer, "weight"), _tensor(layer, "scales"), bias, activation)


class Int8WeightOnly:
    """Every linear layer is rounded but the projection to logits."""

    def linear_method(self, prefix: str) -> LinearMethod:
        return UnquantizedLinearMethod() if prefix == LM_HEAD else Int8LinearMethod()

    def experts_method(self, prefix: str) -> ExpertsMethod:
        raise ConfigError(
            "--quantization int8wo: the model is a mixture of experts, and experts cannot be rounded yet; leave it out"
        )


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[output, input] -> int8 of the same shape, and scales [output] float32. A row of zeros has the scale 1."""
    values = weight.float()
    scales = values.abs().amax(dim=1) / LARGEST
    scales[scales == 0] = 1.0
    return (values / scales[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def _tensor(layer: nn.Module, name: str) -> Tensor:
    tensor = getattr(layer, name)
    assert isinstance(tensor, Tensor)
    return tensor
