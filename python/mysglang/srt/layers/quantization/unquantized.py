"""The null quantization: weights in the dtype of the computation, multiplied by torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.base import LinearMethod


class UnquantizedLinearMethod:
    """One weight [output, input]."""

    def create_weights(
        self, layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
    ) -> None:
        shape = (sum(section.size for section in output_sections), input_section.size)
        if input_section.size < input_section.full:
            weight = WeightParameter(shape, (input_section,), dim=1, dtype=dtype)
        else:
            weight = WeightParameter(shape, output_sections, dtype=dtype)
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Nothing: weights are used as they were loaded."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        return F.linear(x, weight, bias)


class Unquantized:
    """Every linear layer is plain."""

    def linear_method(self, prefix: str) -> LinearMethod:
        return UnquantizedLinearMethod()
