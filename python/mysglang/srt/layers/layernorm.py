"""RMSNorms, with the residual addition before them where there is one. A table says which kinds there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from mysglang.srt.kernels.norm import fused_add_rms_norm, rms_norm
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import WeightParameter


class RMSNorm(nn.Module):
    """Normalises the last dimension."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((size,), dtype=context.dtype)
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


NORMS: Mapping[str, Callable[[int, float, LayerContext], RMSNorm]] = {"rms": RMSNorm}
"""By kind (`NormKind` of the plans): (size, eps, context) -> the norm."""
