"""MambaMixer: a selective state space layer, whose state is a row of numbers for each channel (Mamba, Jamba).

    x ─ in_proj ─┬─ channels ─ convolution ─┬─────────────── scan ─ * silu(z) ─ out_proj
                 │                          └─ x_proj ─ norms ─┘      │
                 └─ z ────────────────────────────────────────────────┘

The formulas and their source are in `kernels/selective_scan.py`. The step says which state each row has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.selective_scan import selective_runs, selective_step
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.linear_attention.gated_delta_net import unquantized
from mysglang.srt.layers.linear_attention.state_layer import ShortConvolution, StateLayer
from mysglang.srt.layers.parameter import Section, WeightParameter

Scan = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaChannels:
    """Sizes of one mixer of the whole model."""

    channels: int
    state_size: int
    """Numbers of each channel's state."""
    rank: int
    """Numbers that the time steps of all channels are made of."""
    kernel: int
    """Tokens that the convolution sees, the token itself included."""
    conv_bias: bool
    bias: bool
    """True if the first and the last projection have biases."""


class MambaMixer(StateLayer):
    """A Mamba mixer. Channels are split over the ranks."""

    def __init__(
        self,
        layer_id: int,
        hidden_size: int,
        sizes: MambaChannels,
        norm: Callable[[int], nn.Module],
        context: LayerContext,
    ) -> None:
        """`norm` makes the norms of what time steps are made of, and of what is written and read with."""
        super().__init__()
        channels, state = sizes.channels, sizes.state_size
        own, plain = Section.split(channels, context.tp.rank, context.tp.size), unquantized(context)
        self.in_proj = MergedColumnParallelLinear(
            hidden_size, (channels, channels), bias=sizes.bias, context=context.under("in_proj")
        )
        self.conv1d = ShortConvolution((own,), sizes.kernel, context, bias=sizes.conv_bias)
        self.x_proj = RowParallelLinear(channels, sizes.rank + 2 * state, context=plain.under("x_proj"))
        self.dt_proj = ColumnParallelLinear(sizes.rank, channels, bias=True, context=plain.under("dt_proj"))
        self.dt_layernorm, self.b_layernorm, self.c_layernorm = norm(sizes.rank), norm(state), norm(state)
        self.A_log = WeightParameter((own.size, state), (own,), dtype=torch.float32)
        self.D = WeightParameter((own.size,), (own,), dtype=torch.float32)
        self.out_proj = RowParallelLinear(channels, hidden_size, bias=sizes.bias, context=context.under("out_proj"))
        self._widths = [sizes.rank, state, state]
        matrix = StatePart((own.size, state), is_recurrent=True)
        self.spec = StateSpec(layer_id, (StatePart((sizes.kernel - 1, own.size)), matrix))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden_size] -> [W, hidden_size], of the wanted tokens. All tokens go through the states."""
        channels, z = self.in_proj(x).chunk(2, dim=-1)
        found = self.through((channels,), batch)
        gated = batch.wanted(found) * F.silu(batch.wanted(z).float())
        out: Tensor = self.out_proj(gated.to(x.dtype))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        (channels,), (recent, matrix) = inputs, state
        convolved = conv_step(channels, self.conv1d.taps, recent, at, self.conv1d.bias)
        return selective_step(*self._scan(convolved), matrix, at)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (channels,), (recent, matrix) = inputs, state
        convolved = conv_runs(channels, self.conv1d.taps, recent, runs, self.conv1d.bias)
        return selective_runs(*self._scan(convolved), matrix, runs)

    def _scan(self, convolved: Tensor) -> Scan:
        """Returns the arguments of the scan of these tokens, [N, channels]."""
        narrow, b, c = torch.split(self.x_proj(convolved), self._widths, dim=-1)
        # The bias is added in float32, with the softplus.
        time = self.dt_proj.method.apply(self.dt_proj, self.dt_layernorm(narrow.contiguous()), None)
        bias = self.dt_proj.bias
        assert bias is not None
        b, c = self.b_layernorm(b.contiguous()), self.c_layernorm(c.contiguous())
        return convolved, time, b, c, bias.float(), self.A_log, self.D
