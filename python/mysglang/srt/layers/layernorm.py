"""Norms, with the residual addition before them where there is one. A table lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.kernels.gemm import linear
from mysglang.srt.kernels.norm import fused_add_rms_norm, rms_norm, sum_and_norm
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import Section, WeightParameter


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((size,), dtype=context.dtype)
        self.weight.centre = 1.0
        self.eps = eps

    @property
    def gain(self) -> Tensor:
        """[size]: what the normalised values are multiplied with."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.gain, self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns (norm(x + residual), x + residual). Without a residual, the second is x. Both arguments are
        overwritten.
        """
        if residual is None:
            return rms_norm(x, self.gain, self.eps), x
        return fused_add_rms_norm(x, residual, self.gain, self.eps)

    def sum_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (x + residual, norm(x + residual)), both new. x, residual: [T, size]."""
        return sum_and_norm(x, residual, self.gain, self.eps)


class UnitRMSNorm(RMSNorm):
    """An RMSNorm without a weight."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        nn.Module.__init__(self)
        self.eps = eps
        self._ones = torch.ones(size, dtype=context.dtype)

    @property
    def gain(self) -> Tensor:
        return self._ones


class PlusOneRMSNorm(RMSNorm):
    """An RMSNorm that multiplies by 1 + weight, which is kept in float32: in bfloat16 the sum would lose most of the
    weight.
    """

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__(size, eps, context)
        self.weight.centre = 0.0
        self._gain = torch.empty(size, dtype=torch.float32)

    @property
    def gain(self) -> Tensor:
        return self._gain

    def process_weights_after_loading(self) -> None:
        """Writes the gain to the same memory as before, because a captured step has its address."""
        self._gain.copy_(1.0 + self.weight.float())

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Does nothing: the weight is kept as it was loaded."""

    def values_of(self, name: str) -> Tensor:
        return self.weight


class SplitRMSNorm(RMSNorm):
    """An RMSNorm over all heads of queries, or of keys, together. Each rank has only some of them."""

    def __init__(self, section: Section, eps: float, context: LayerContext) -> None:
        """`section`: this rank's part of the elements."""
        super().__init__(section.size, eps, context)
        self.weight = WeightParameter((section.size,), (section,), dtype=context.dtype)
        self.weight.centre = 1.0
        self._tp = context.tp
        # Heads of keys that several ranks hold are counted as often.
        self._counted = section.size * context.tp.size
        self._ones = torch.ones(1, section.size)

    def forward(self, x: Tensor) -> Tensor:
        if self._tp.size == 1:
            return super().forward(x)
        values = x.float()
        # Computed as a matrix product, because that op also has a form whose rows do not depend on the rows beside
        # them.
        squares = self._tp.all_reduce(linear(values.square(), self._ones, None))
        normed = values * torch.rsqrt(squares / self._counted + self.eps)
        return normed.to(x.dtype) * self.gain


class LayerNorm(nn.Module):
    """Subtracts the mean, then normalises the last dimension (Ba, Kiros and Hinton, arXiv 1607.06450)."""

    centre = 1.0
    """Mean of the weights of a model."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((size,), dtype=context.dtype)
        self.weight.centre = self.centre
        self.bias = self._make_bias(size, context)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self._gain(), self.bias, self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns (norm(x + residual), x + residual). Without a residual, the second is x."""
        total = x if residual is None else x + residual
        return self(total), total

    def _gain(self) -> Tensor:
        return self.weight

    def _make_bias(self, size: int, context: LayerContext) -> WeightParameter | None:
        return WeightParameter((size,), dtype=context.dtype)


class PlusOneLayerNorm(LayerNorm):
    """A LayerNorm that multiplies by 1 + weight, as Nemotron's do."""

    centre = 0.0

    def _gain(self) -> Tensor:
        return self.weight + 1.0


class BiaslessLayerNorm(LayerNorm):
    """A LayerNorm that multiplies in float32 and adds nothing, as Cohere's do."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.weight.shape, self.weight.float(), None, self.eps).to(x.dtype)

    def _make_bias(self, size: int, context: LayerContext) -> WeightParameter | None:
        return None


class NoNorm(nn.Module):
    """A null object for a layer that takes the residual stream without a norm."""

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns (x + residual, a copy of it). The copy is needed since the layer may overwrite the first."""
        total = x if residual is None else x + residual
        return total, total.clone()


RMS_NORMS: Mapping[str, Callable[[int, float, LayerContext], RMSNorm]] = {
    "rms": RMSNorm,
    "rms_unit": UnitRMSNorm,
    "rms_plus_one": PlusOneRMSNorm,
}
"""Norms of heads that the rotation's kernel can compute."""

NORMS: Mapping[str, Callable[[int, float, LayerContext], RMSNorm | LayerNorm]] = {
    **RMS_NORMS,
    "layer": LayerNorm,
    "layer_plus_one": PlusOneLayerNorm,
    "layer_without_bias": BiaslessLayerNorm,
}
"""(size, eps, context) -> the norm of each kind that a model's plan may name."""
