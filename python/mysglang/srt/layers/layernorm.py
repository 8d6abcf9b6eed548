"""RMSNorms, with the residual addition before them where there is one. A table says which kinds there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mysglang.srt.kernels.norm import fused_add_rms_norm, rms_norm
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import WeightParameter


class RMSNorm(nn.Module):
    """Normalises the last dimension."""

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
        """(norm(x + residual), x + residual); x starts the residual where there is none. Consumes both."""
        if residual is None:
            return rms_norm(x, self.gain, self.eps), x
        return fused_add_rms_norm(x, residual, self.gain, self.eps)


class PlusOneRMSNorm(RMSNorm):
    """Multiplies by 1 + weight, which is kept in float32: in bfloat16 the sum would lose most of the weight."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__(size, eps, context)
        self.weight.centre = 0.0
        self._gain = torch.empty(size, dtype=torch.float32)

    @property
    def gain(self) -> Tensor:
        return self._gain

    def process_weights_after_loading(self) -> None:
        """In the place where it was: a captured step has its address."""
        self._gain.copy_(1.0 + self.weight.float())

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """The weight is there as it was loaded."""

    def values_of(self, name: str) -> Tensor:
        return self.weight


NORMS: Mapping[str, Callable[[int, float, LayerContext], RMSNorm]] = {
    "rms": RMSNorm,
    "rms_plus_one": PlusOneRMSNorm,
}
"""(size, eps, context) -> the norm of each kind that a model's plan may name."""
