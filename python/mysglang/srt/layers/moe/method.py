"""Methods for the weights of a layer's experts: how they are stored and computed with. `LinearMethod` does the same for
one linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, fused_experts, pack_experts, unpack_experts
from mysglang.srt.layers.moe.parameter import ExpertsParameter, FusedExpertsParameter, FusedLayout
from mysglang.srt.layers.parameter import Section, WeightParameter, replace_parameter, restore_parameter

NAMES = ("w13_weight", "w2_weight")


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of one layer's experts on this rank."""

    experts: int
    hidden_size: int
    inner: Section
    """Section of each expert's gate and up outputs, and of the input of its down projection."""
    fused: FusedLayout | None = None
    """How a checkpoint has all experts in one tensor; None: it has each by itself."""
    gated: bool = True
    """False: there is no gate, and `w13_weight` has up alone."""

    @property
    def inwards(self) -> tuple[Section, ...]:
        """Parts of each expert's first product: gate and up, or up alone."""
        return (self.inner, self.inner) if self.gated else (self.inner,)

    def parameter(
        self, shape: tuple[int, ...], parts: tuple[Section, ...], dtype: torch.dtype, *, dim: int = 0
    ) -> ExpertsParameter:
        """Makes a parameter that holds a tensor of this shape for each expert, made of these parts along `dim`."""
        if self.fused is None:
            return ExpertsParameter(self.experts, shape, parts, dim=dim, dtype=dtype)
        return FusedExpertsParameter(self.experts, shape, parts, dim=dim, dtype=dtype, fused=self.fused)


class ExpertsMethod(Protocol):
    """How the experts of one layer are kept and used."""

    def create_weights(self, layer: nn.Module, sizes: ExpertSizes, dtype: torch.dtype) -> None:
        """Register `w13_weight` (sections: gate, if there is one, and up of each expert in turn) and `w2_weight` (down
        of each).
        """
        ...

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Does what the method of this name of `LinearMethod` does."""
        ...

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Does what the method of this name of `LinearMethod` does."""
        ...

    def plain_weight(self, layer: nn.Module, name: str) -> Tensor:
        """Returns [experts, output, input]: the values that are computed with, in any float dtype."""
        ...

    def dense_weights(self, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Returns both weights as `fused_experts` takes them; None if they are quantized."""
        ...

    def apply(
        self, layer: nn.Module, x: Tensor, ids: Tensor, gates: Tensor, activation: Activation, biases: Biases
    ) -> Tensor:
        """Computes this rank's part of the experts' weighted sum: x [N, hidden] -> [N, hidden]. ids, gates: [N,
        top_k].
        """
        ...


class UnquantizedExpertsMethod:
    """w13_weight [experts, 2 * inner, hidden]: gate's rows, then up's; [experts, inner, hidden] without a gate.
    w2_weight [experts, hidden, inner].
    """

    def create_weights(self, layer: nn.Module, sizes: ExpertSizes, dtype: torch.dtype) -> None:
        create_expert_weights(layer, sizes, dtype)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Replace the loaded weights by the device's own form of them, if it has one."""
        for name, weights in zip(NAMES, pack_experts(*_tensors(layer)), strict=True):
            replace_parameter(layer, name, weights)

    def reopen_weights(self, layer: nn.Module, layouts: Mapping[str, WeightParameter]) -> None:
        """Puts the plain weights back as loadable parameters."""
        for name in NAMES:
            if not isinstance(getattr(layer, name), WeightParameter):
                restore_parameter(layer, name, layouts[name].filled(self.plain_weight(layer, name)))

    def plain_weight(self, layer: nn.Module, name: str) -> Tensor:
        return unpack_experts(_tensors(layer)[NAMES.index(name)])

    def dense_weights(self, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
        return _tensors(layer)

    def apply(
        self, layer: nn.Module, x: Tensor, ids: Tensor, gates: Tensor, activation: Activation, biases: Biases
    ) -> Tensor:
        w13, w2 = _tensors(layer)
        return fused_experts(x, w13, w2, ids, gates, activation, biases)


def create_expert_weights(layer: nn.Module, sizes: ExpertSizes, dtype: torch.dtype) -> None:
    """Register both parameters of the layer, split where this rank has a part."""
    hidden, inner = sizes.hidden_size, sizes.inner
    w13 = sizes.parameter((len(sizes.inwards) * inner.size, hidden), sizes.inwards, dtype)
    w2 = sizes.parameter((hidden, inner.size), (inner,), dtype, dim=1)
    for name, parameter in zip(NAMES, (w13, w2), strict=True):
        layer.register_parameter(name, parameter)


def _tensors(layer: nn.Module) -> tuple[Tensor, Tensor]:
    w13, w2 = layer.w13_weight, layer.w2_weight
    assert isinstance(w13, Tensor) and isinstance(w2, Tensor)
    return w13, w2
