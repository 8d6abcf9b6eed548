"""A gated MLP whose gate is cut off, so that few of its numbers are not zero (Gaussian top-k). Source: Gemma 3n."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from mysglang.srt.kernels.activation import gated
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import FeedForward
from mysglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear


class SparseMLP(FeedForward):
    """down(act(relu(gate(x) - mean - deviations * standard deviation)) * up(x)), both of all numbers of gate(x).

    sparsity: the part of the gate's numbers that are below the cutoff if they are distributed normally. From it follows
    how many standard deviations lie between the mean and the cutoff.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, act: str, sparsity: float, context: LayerContext
    ) -> None:
        super().__init__()
        self._activation, self._deviations = gated_activation(act), NormalDist().inv_cdf(sparsity)
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, (intermediate_size, intermediate_size), context=context.under("gate_up_proj")
        )
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, context=context.under("down_proj"))
        self._tp, self._size = context.tp, intermediate_size
        self._ones = torch.ones(1, intermediate_size // context.tp.size)

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up_proj(x)
        gate = both[:, : both.shape[1] // 2]
        given = gate.float()
        gate.copy_((given - self._cutoff(given)).relu_())
        out: Tensor = self.down_proj(gated[self._activation](both))
        return out

    def _cutoff(self, gate: Tensor) -> Tensor:
        """Returns the smallest gate value that is kept, [N, 1]. gate: float32 [N, this rank's part of the gate].

        Sums are products, whose deterministic form treats each row by itself.
        """
        sums = torch.cat((linear(gate, self._ones, None), linear(gate.square(), self._ones, None)), dim=-1)
        mean, square = (self._tp.all_reduce(sums) / self._size).chunk(2, dim=-1)
        return mean + self._deviations * (square - mean.square()).clamp(min=0.0).sqrt()
