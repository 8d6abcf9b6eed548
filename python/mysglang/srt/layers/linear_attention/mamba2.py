"""Mamba2Mixer: a state space layer whose state is a matrix for each head (Bamba, Granite 4, Nemotron-H, Falcon-H1).

    x ─ in_proj ─┬─ x b c ─ convolution ─ recurrence ─ norm(· * silu(z)) ─ out_proj
                 ├─ time step ────────────┘            │
                 └─ z ─────────────────────────────────┘

The formulas and their source stand in `kernels/linear_attention.py`. Which state a row has is said by the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.linear_attention import (
    conv_run,
    conv_step,
    gated_group_norm,
    gated_rms_norm,
    scan_run,
    scan_step,
)
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.linear_attention.short_convolution import ShortConvolution
from mysglang.srt.layers.linear_attention.state_layer import StateLayer
from mysglang.srt.layers.parameter import Section, WeightParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSizes:
    """Sizes of one mixer of the whole model."""

    heads: int
    head_dim: int
    groups: int
    """Number of groups of heads that share B and C, the vectors that write to the state and read from it."""
    state_size: int
    kernel: int
    """Tokens that the convolution sees, the token itself included."""
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    factors: tuple[float, float, float, float, float] | None
    """Factors of the projected z, x, B, C and time step. None: 1 each."""


class Mamba2Mixer(StateLayer):
    """A Mamba2 mixer. Each rank has whole groups of heads."""

    def __init__(
        self,
        layer_id: int,
        hidden_size: int,
        sizes: MambaSizes,
        norm: nn.Module,
        context: LayerContext,
    ) -> None:
        """`norm`: (what the heads give, z), [N, heads * head_dim] each on this rank -> the same shape."""
        super().__init__()
        rank, ranks = context.tp.rank, context.tp.size
        inner, rows = sizes.heads * sizes.head_dim, sizes.groups * sizes.state_size
        self.in_proj = MergedColumnParallelLinear(
            hidden_size,
            (inner, inner, rows, rows, sizes.heads),
            bias=sizes.in_bias,
            context=context.under("in_proj"),
        )
        sections = tuple(Section.split(size, rank, ranks) for size in (inner, rows, rows))
        self.widths = [section.size for section in sections]
        """Widths of x, B and C on this rank."""
        self.conv1d = ShortConvolution(sections, sizes.kernel, context, bias=sizes.conv_bias)
        heads = Section.split(sizes.heads, rank, ranks)
        self.A_log, self.D, self.dt_bias = (
            WeightParameter((heads.size,), (heads,), dtype=torch.float32) for _ in range(3)
        )
        self.norm = norm
        self.out_proj = RowParallelLinear(inner, hidden_size, bias=sizes.out_bias, context=context.under("out_proj"))
        self.sizes = sizes
        matrix = (heads.size, sizes.state_size, sizes.head_dim)
        self.spec = StateSpec(
            layer_id, (StatePart((sizes.kernel - 1, sum(self.widths))), StatePart(matrix, torch.float32))
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden_size] -> [W, hidden_size], of the wanted tokens. All tokens go through the states."""
        projected: Tensor = self.in_proj(x)
        z, channels, time = torch.split(projected, [self.widths[0], sum(self.widths), len(self.D)], dim=-1)
        if self.sizes.factors is not None:
            z, channels, time = self._scaled(z, channels, time, self.sizes.factors)
        found = self.through((channels, F.softplus(time.float() + self.dt_bias)), batch)
        out: Tensor = self.out_proj(self.norm(batch.wanted(found).flatten(1), batch.wanted(z)))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        """inputs: channels, and the time steps, float32. Returns [R, heads, head_dim]."""
        (channels, time), (recent, matrix) = inputs, state
        convolved = conv_step(channels, self.conv1d.taps, recent, at, self.conv1d.bias)
        return scan_step(*self._heads(convolved), time, -self.A_log.exp(), self.D, matrix, at)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: int) -> Tensor:
        (channels, time), (recent, matrix) = inputs, state
        convolved = conv_run(channels, self.conv1d.taps, recent, at, self.conv1d.bias)
        return scan_run(*self._heads(convolved), time, -self.A_log.exp(), self.D, matrix, at)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, heads, head_dim] inputs, and [N, groups, state_size] what is written with and what is read with."""
        x, b, c = torch.split(convolved, self.widths, dim=-1)
        rows, sizes = len(convolved), self.sizes
        return (
            x.reshape(rows, -1, sizes.head_dim),
            b.reshape(rows, -1, sizes.state_size),
            c.reshape(rows, -1, sizes.state_size),
        )

    def _scaled(
        self, z: Tensor, channels: Tensor, time: Tensor, factors: tuple[float, float, float, float, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_z, *of_channels, of_time = factors
        scaled = [
            part * factor for part, factor in zip(torch.split(channels, self.widths, dim=-1), of_channels, strict=True)
        ]
        return z * of_z, torch.cat(scaled, dim=-1), time * of_time


class GateThenNorm(nn.Module):
    """norm(x * silu(gate)), in parts that are normed each by itself."""

    def __init__(self, section: Section, groups: int, eps: float, context: LayerContext) -> None:
        """`section`: this rank's numbers of all. `groups`: parts of these."""
        super().__init__()
        self.weight = WeightParameter((section.size,), (section,), dtype=context.dtype)
        self.weight.centre = 1.0
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return gated_group_norm(x, self.weight, gate, self.eps, self.groups)


class NormThenGate(GateThenNorm):
    """norm(x) * silu(gate)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        parts = (len(x), self.groups, x.shape[-1] // self.groups)
        normed = gated_rms_norm(x.view(parts), self.weight.view(parts[1:]), gate.reshape(parts), self.eps)
        return normed.view_as(x)


class GateAlone(nn.Module):
    """x * silu(gate)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * F.silu(gate)
