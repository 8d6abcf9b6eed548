"""ShortConvolution: a causal convolution of each channel by itself over the newest few tokens, before a recurrence."""

from __future__ import annotations

from torch import Tensor, nn

from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import Section, WeightParameter


class ShortConvolution(nn.Module):
    """Its weight, [channels, 1, kernel], and maybe a bias, [channels]; the ops are in `kernels/linear_attention.py`."""

    def __init__(
        self, sections: tuple[Section, ...], kernel: int, context: LayerContext, *, bias: bool = False
    ) -> None:
        """`sections`: of the channels."""
        super().__init__()
        channels = sum(section.size for section in sections)
        self.weight = WeightParameter((channels, 1, kernel), sections, dtype=context.dtype)
        self.bias = WeightParameter((channels,), sections, dtype=context.dtype) if bias else None

    @property
    def taps(self) -> Tensor:
        """[channels, kernel]."""
        return self.weight.squeeze(1)
