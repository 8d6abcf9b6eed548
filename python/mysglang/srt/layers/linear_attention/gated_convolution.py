"""GatedConvolution: a short convolution between two gates, which keeps nothing but its newest inputs (LFM2).

x ─ in_proj ─┬─ b ─ * ─ convolution ─ * ─ out_proj
             ├─ x ──┘                 │
             └─ c ────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.linear_attention.state_layer import ShortConvolution, StateLayer
from mysglang.srt.layers.parameter import Section


class GatedConvolution(StateLayer):
    """A gated convolution over as many channels as the hidden size, split over the ranks."""

    def __init__(self, layer_id: int, hidden_size: int, kernel: int, context: LayerContext, *, bias: bool) -> None:
        """`bias`: True if the convolution and both projections have a bias."""
        super().__init__()
        section = Section.split(hidden_size, context.tp.rank, context.tp.size)
        self.in_proj = MergedColumnParallelLinear(
            hidden_size, (hidden_size,) * 3, bias=bias, context=context.under("in_proj")
        )
        self.conv = ShortConvolution((section,), kernel, context, bias=bias)
        self.out_proj = RowParallelLinear(hidden_size, hidden_size, bias=bias, context=context.under("out_proj"))
        self.spec = StateSpec(layer_id, (StatePart((kernel - 1, section.size)),))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens update the
        states.
        """
        b, c, channels = self.in_proj(x).chunk(3, dim=-1)
        found = self.through((b * channels,), batch)
        out: Tensor = self.out_proj(batch.wanted(c) * batch.wanted(found))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        (channels,), (recent,) = inputs, state
        return conv_step(channels, self.conv.taps, recent, at, self.conv.bias, silu=False)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (channels,), (recent,) = inputs, state
        return conv_runs(channels, self.conv.taps, recent, runs, self.conv.bias, silu=False)
