"""Dense modules of sentence-transformers: linear layers with an activation that pooled vectors pass through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.quantization.unquantized import Unquantized

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "GELU": F.gelu,
    "ReLU": F.relu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


class DenseFacts(Protocol):
    """Sizes of one module, and the name of its activation in `ACTIVATIONS`."""

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def bias(self) -> bool: ...

    @property
    def activation(self) -> str: ...


class Dense(nn.Module):
    """Computes activation(linear(x)), with the module's names of tensors."""

    def __init__(self, config: DenseFacts, context: LayerContext) -> None:
        super().__init__()
        self.linear = ReplicatedLinear(
            config.in_features, config.out_features, bias=config.bias, context=context.under("linear")
        )
        self._activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[N, in_features] float32 -> [N, out_features] float32."""
        return self._activation(self.linear(x))


def dense_layers(configs: Sequence[DenseFacts], context: LayerContext) -> nn.Sequential:
    """Returns the modules one after another; none returns vectors as they are. They compute in float32, as pooling
    does, and are not quantized.
    """
    exact = replace(context, dtype=torch.float32, quant=Unquantized())
    return nn.Sequential(*(Dense(config, exact.under(f"dense.{i}")) for i, config in enumerate(configs)))
