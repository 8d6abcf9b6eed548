"""KimiDeltaAttention: a gated delta net with a decay for each channel of a key (Kimi Linear).

    x ─┬─ q k v ─ convolution ─────── gated delta rule ─ norm * sigmoid(gates) ─ o_proj
       ├─ f_a ─ f_b: decays ───────────┤                  │
       ├─ b: strengths ────────────────┘                  │
       └─ g_a ─ g_b: gates ───────────────────────────────┘

The formulas and their source are in `kernels/linear_attention.py`. The step says which state each row has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.delta_rule import delta_runs, delta_step
from mysglang.srt.kernels.gated_norm import gated_rms_norm
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
    SectionsLinear,
)
from mysglang.srt.layers.linear_attention.gated_delta_net import GatedRMSNorm, unquantized
from mysglang.srt.layers.linear_attention.state_layer import ShortConvolution, StateLayer
from mysglang.srt.layers.parameter import Section, WeightParameter


@dataclass(frozen=True, slots=True)
class KimiDeltaSizes:
    """Sizes of one layer of the whole model."""

    heads: int
    head_dim: int
    """Size of each query, key and value, and of what decays and gates are made of."""
    kernel: int
    """Tokens that the convolution sees, the token itself included."""


class SigmoidRMSNorm(GatedRMSNorm):
    """An RMSNorm of each head, times sigmoid(gate)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return gated_rms_norm(x, self.weight, gate, self.eps, True)


class KimiDeltaAttention(StateLayer):
    """Kimi Delta Attention. Each rank has whole heads."""

    def __init__(
        self, layer_id: int, hidden_size: int, sizes: KimiDeltaSizes, eps: float, context: LayerContext
    ) -> None:
        super().__init__()
        rank, ranks = context.tp.rank, context.tp.size
        dim, kernel, width = sizes.head_dim, sizes.kernel, sizes.heads * sizes.head_dim
        heads, channels = Section.split(sizes.heads, rank, ranks), Section.split(width, rank, ranks)
        whole, plain = Section(dim, 0, dim), unquantized(context)
        self.in_proj_qkv = MergedColumnParallelLinear(hidden_size, (width,) * 3, context=context.under("in_proj_qkv"))
        self.in_proj_gates = SectionsLinear(hidden_size, (whole, whole, heads), context=plain.under("in_proj_gates"))
        self.f_b_proj = ColumnParallelLinear(dim, width, context=plain.under("f_b_proj"))
        self.g_b_proj = ColumnParallelLinear(dim, width, context=plain.under("g_b_proj"))
        self.conv1d = ShortConvolution((channels,) * 3, kernel, context)
        self.A_log = WeightParameter((1, 1, heads.size, 1), (heads,), dim=2, dtype=torch.float32)
        self.dt_bias = WeightParameter((channels.size,), (channels,), dtype=torch.float32)
        self.o_norm = SigmoidRMSNorm(dim, eps, context)
        self.o_proj = RowParallelLinear(width, hidden_size, context=context.under("o_proj"))
        self._shape = (heads.size, dim)
        self._widths = [dim, dim, heads.size]
        matrix = StatePart((heads.size, dim, dim), is_recurrent=True)
        self.spec = StateSpec(layer_id, (StatePart((kernel - 1, 3 * channels.size)), matrix))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens update the
        states.
        """
        narrow, gates, strengths = torch.split(self.in_proj_gates(x), self._widths, dim=-1)
        decays = self.f_b_proj(narrow).unflatten(-1, self._shape)
        attended = self.through((self.in_proj_qkv(x), decays, strengths), batch)
        gate = self.g_b_proj(batch.wanted(gates)).unflatten(-1, self._shape)
        out: Tensor = self.o_proj(self.o_norm(batch.wanted(attended), gate).flatten(1))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        """Processes one new token of each row. inputs: channels, and what decays [R, heads, head_dim] and strengths
        [R, heads] are made of.
        """
        (channels, decays, strengths), (recent, matrix) = inputs, state
        heads = self._heads(conv_step(channels, self.conv1d.taps, recent, at))
        return delta_step(*heads, decays, strengths, *self._rates(), matrix, at)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (channels, decays, strengths), (recent, matrix) = inputs, state
        heads = self._heads(conv_runs(channels, self.conv1d.taps, recent, runs))
        return delta_runs(*heads, decays, strengths, *self._rates(), matrix, runs)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, [N, heads, head_dim] each."""
        q, k, v = convolved.view(-1, 3, *self._shape).unbind(1)
        return q, k, v

    def _rates(self) -> tuple[Tensor, Tensor]:
        """Returns [heads] logarithms of rates, and [heads, head_dim] time biases."""
        return self.A_log.flatten(), self.dt_bias.view(self._shape)
