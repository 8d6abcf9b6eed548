"""int8wo: the weights of linear layers and experts as eight-bit integers, rounded from a plain checkpoint when it is
loaded.

    w[o, i] ≈ q[o, i] * scale[o],   scale[o] = max |w[o, :]| / 127,   q rounded to nearest

Half the bytes that a decode step reads for them. Activations, embedding and logits stay as they are. Taking the weights
apart and rounding them again changes nothing. The largest of a row comes back as itself, so the scale is the same. The
others are nearest to their own integer: bfloat16 is off by at most 2^-9 of a value, a quotient of two by at most 2^-8,
and 127 times that is less than a half.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, int8_fused_experts, pack_int8_experts, unpack_int8_experts
from mysglang.srt.kernels.gemm import int8_gated_linear, int8_linear, pack_int8_weight, unpack_int8_weight
from mysglang.srt.layers.moe.method import NAMES, ExpertSizes, ExpertsMethod, create_expert_weights
from mysglang.srt.layers.parameter import Section, WeightParameter, replace_parameter, restore_parameter
from mysglang.srt.layers.quantization.base import LinearMethod
from mysglang.srt.layers.quantization.unquantized import UnquantizedLinearMethod, create_weight

LARGEST = 127
EXPERT_SCALES = ("w13_scales", "w2_scales")
LM_HEAD = "lm_head"
"""Prefix of the parameters of the projection to logits."""


class Int8LinearMethod:
    """A linear layer with one int8 weight [output, input], maybe packed, and `scales` [output] float32."""

    def create_weights(
        self, layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
    ) -> None:
        create_weight(layer, input_section, output_sections, dtype)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Rounds the weight to int8, with scales."""
        weight, scales = quantize(_tensor(layer, "weight"))
        replace_parameter(layer, "weight", pack_int8_weight(weight))
        layer.scales = scales

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Makes a loadable weight from the values that were computed with."""
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


class Int8ExpertsMethod:
    """Experts with two int8 weights, maybe packed, and their `w13_scales` and `w2_scales` [experts, output] float32."""

    def create_weights(self, layer: nn.Module, sizes: ExpertSizes, dtype: torch.dtype) -> None:
        create_expert_weights(layer, sizes, dtype)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Rounds each expert's weights to int8, with scales."""
        (w13, w13_scales), (w2, w2_scales) = (quantize_experts(_tensor(layer, name)) for name in NAMES)
        for name, weights in zip(NAMES, pack_int8_experts(w13, w2), strict=True):
            replace_parameter(layer, name, weights)
        layer.w13_scales, layer.w2_scales = w13_scales, w2_scales

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Makes loadable weights from the values that were computed with."""
        for name, scales in zip(NAMES, EXPERT_SCALES, strict=True):
            if not isinstance(getattr(layer, name), WeightParameter):
                layout = layouts[name]
                restore_parameter(layer, name, layout.filled(self.plain_weight(layer, name).to(layout.dtype)))
                delattr(layer, scales)

    def plain_weight(self, layer: nn.Module, name: str) -> Tensor:
        weights = _tensor(layer, name)
        if isinstance(weights, WeightParameter):
            return weights
        scales = _tensor(layer, EXPERT_SCALES[NAMES.index(name)])
        return unpack_int8_experts(weights).float() * scales[..., None]

    def dense_weights(self, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
        return None

    def apply(
        self, layer: nn.Module, x: Tensor, ids: Tensor, gates: Tensor, activation: Activation, biases: Biases
    ) -> Tensor:
        w13, w2 = (_tensor(layer, name) for name in NAMES)
        scales = _tensor(layer, EXPERT_SCALES[0]), _tensor(layer, EXPERT_SCALES[1])
        return int8_fused_experts(x, w13, w2, scales, ids, gates, activation, biases)


class Int8WeightOnly:
    """Quantizes every linear layer to int8, except the projection to logits and the router of experts."""

    def linear_method(self, prefix: str) -> LinearMethod:
        return UnquantizedLinearMethod() if prefix == LM_HEAD else Int8LinearMethod()

    def experts_method(self, prefix: str) -> ExpertsMethod:
        return Int8ExpertsMethod()


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes [output, input] to int8 of the same shape, and scales [output] float32. A row of zeros has the
    scale 1.
    """
    values = weight.float()
    scales = values.abs().amax(dim=1) / LARGEST
    scales[scales == 0] = 1.0
    return (values / scales[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def quantize_experts(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes [experts, output, input] to int8 of the same shape, and scales [experts, output] float32."""
    rounded = torch.empty(weights.shape, dtype=torch.int8)
    scales = torch.empty(weights.shape[:2], dtype=torch.float32)
    for expert, weight in enumerate(weights):
        rounded[expert], scales[expert] = quantize(weight)
    return rounded, scales


def _tensor(layer: nn.Module, name: str) -> Tensor:
    tensor = getattr(layer, name)
    assert isinstance(tensor, Tensor)
    return tensor
