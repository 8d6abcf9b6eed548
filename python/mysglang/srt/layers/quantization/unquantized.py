"""The null quantization: weights in the dtype of the computation, multiplied by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.gemm import gated_linear, linear, pack_linear_weight, unpack_linear_weight
from mysglang.srt.layers.parameter import Section, WeightParameter, replace_parameter, restore_parameter
from mysglang.srt.layers.quantization.base import LinearMethod
from mysglang.srt.utils.late_import import at_first_call

if TYPE_CHECKING:
    from mysglang.srt.layers.moe.method import ExpertsMethod


class UnquantizedLinearMethod:
    """A linear layer with one plain weight [output, input]."""

    def create_weights(
        self, layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
    ) -> None:
        create_weight(layer, input_section, output_sections, dtype)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Replace the loaded weights by the device's own form of them, if it has one."""
        replace_parameter(layer, "weight", pack_linear_weight(_weight(layer)))

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Gives the layer plain, writable weights again, in the same memory."""
        reopen_weight(layer, layouts)

    def plain_weight(self, layer: nn.Module) -> Tensor:
        return plain_weight(_weight(layer))

    def dense_weight(self, layer: nn.Module) -> Tensor | None:
        return _weight(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, _weight(layer), bias)

    def apply_gated(self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        return gated_linear(x, _weight(layer), bias, activation)


def create_weight(
    layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
) -> None:
    """Register `weight` [output, input] of the layer, split where this rank has a part."""
    shape = (sum(section.size for section in output_sections), input_section.size)
    if input_section.size < input_section.full:
        weight = WeightParameter(shape, (input_section,), dim=1, dtype=dtype)
    else:
        weight = WeightParameter(shape, output_sections, dtype=dtype)
    layer.register_parameter("weight", weight)


def reopen_weight(layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
    """Makes a packed `weight` of the layer a parameter again; a plain one stays as it is."""
    weight = _weight(layer)
    if not isinstance(weight, WeightParameter):
        restore_parameter(layer, "weight", layouts["weight"].filled(plain_weight(weight)))


def plain_weight(weight: Tensor) -> Tensor:
    """Returns the weight [output, input] that was packed; any other tensor as it is."""
    return unpack_linear_weight(weight)


_experts_method: Callable[[], ExpertsMethod] = at_first_call("mysglang.srt.layers.moe.method:UnquantizedExpertsMethod")


class Unquantized:
    """The config of a checkpoint without quantization: every layer has plain weights."""

    def linear_method(self, prefix: str) -> LinearMethod:
        return UnquantizedLinearMethod()

    def experts_method(self, prefix: str) -> ExpertsMethod:
        return _experts_method()


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight
