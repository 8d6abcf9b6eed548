"""The interface of a quantization of linear layers: it makes the weights, finishes them after loading, and multiplies.

Linears hold a method and know nothing of formats; a model is built with one QuantConfig and never mentions it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.layers.parameter import Section, WeightParameter

if TYPE_CHECKING:
    from mysglang.srt.layers.moe.method import ExpertsMethod


class LinearMethod(Protocol):
    """How the weights of one linear layer are kept and used."""

    def create_weights(
        self, layer: nn.Module, input_section: Section, output_sections: tuple[Section, ...], dtype: torch.dtype
    ) -> None:
        """Register the layer's parameters. Sizes of the sections are this rank's."""
        ...

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Bring loaded weights into the form that `apply` wants; afterwards nothing can be loaded into them until
        `reopen_weights`.
        """
        ...

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Undoes `process_weights_after_loading`: makes parameters that can be loaded again, with the values that the
        layer has.

        layouts: what `create_weights` registered, by name, without memory.
        """
        ...

    def plain_weight(self, layer: nn.Module) -> Tensor:
        """Returns [output, input]: the values that are computed with, in any float dtype."""
        ...

    def dense_weight(self, layer: nn.Module) -> Tensor | None:
        """Returns the tensor [output, input] that `apply` multiplies with, for a kernel that computes the same by
        itself; None if `apply` multiplies with anything else.
        """
        ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        """Computes the layer's linear map: x [..., input] to [..., output], plus `bias` if there is one."""
        ...

    def apply_gated(self, layer: nn.Module, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        """Returns the activation of the first half of the output times the second half: [..., input] -> [..., output /
        2].
        """
        ...


class QuantConfig(Protocol):
    """The quantization of one checkpoint."""

    def linear_method(self, prefix: str) -> LinearMethod:
        """Returns the method for the linear layer whose parameters start with `prefix`
        (layers.0.self_attn.qkv_proj).
        """
        ...

    def experts_method(self, prefix: str) -> ExpertsMethod:
        """Returns the method for the experts whose parameters start with `prefix` (layers.0.mlp.experts).

        Raises ConfigError if experts cannot be quantized so.
        """
        ...
