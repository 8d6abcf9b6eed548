"""Mamba2Mixer: a state space layer whose state is a matrix for each head (Mamba-2, and hybrids as Bamba).

    x ─ in_proj ─┬─ x b c ─ convolution ─ recurrence ─ norm(· * silu(z)) ─ out_proj
                 ├─ time step ────────────┘            │
                 └─ z ─────────────────────────────────┘

The formulas and their source are in `kernels/linear_attention.py`. The step says which state each row has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.gated_norm import gated_group_norm, gated_rms_norm
from mysglang.srt.kernels.gemm import linear
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.state_space import scan_runs, scan_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import RowParallelLinear, SectionsLinear, split_kv_heads
from mysglang.srt.layers.linear_attention.state_layer import ShortConvolution, StateLayer
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
    least_step: float
    """Lower bound of time steps; 0: none."""


class Mamba2Mixer(StateLayer):
    """A Mamba2 mixer. Each rank has whole heads.

    Where there are fewer groups than ranks, neighbouring ranks hold the B and C of the same one.
    """

    def __init__(
        self,
        layer_id: int,
        hidden_size: int,
        sizes: MambaSizes,
        norm: nn.Module,
        context: LayerContext,
    ) -> None:
        """`norm`: a module that takes the heads' output and z, [N, heads * head_dim] each on this rank, and returns the
        same shape.
        """
        super().__init__()
        rank, ranks = context.tp.rank, context.tp.size
        inner = sizes.heads * sizes.head_dim
        heads, inputs = Section.split(sizes.heads, rank, ranks), Section.split(inner, rank, ranks)
        groups = split_kv_heads(sizes.groups, rank, ranks)
        rows = Section(*(number * sizes.state_size for number in (groups.full, groups.start, groups.size)))
        sections = (inputs, rows, rows)
        self.in_proj = SectionsLinear(
            hidden_size, (inputs, *sections, heads), bias=sizes.in_bias, context=context.under("in_proj")
        )
        self.widths = [section.size for section in sections]
        """Widths of x, B and C on this rank."""
        self.conv1d = ShortConvolution(sections, sizes.kernel, context, bias=sizes.conv_bias)
        self.A_log, self.D, self.dt_bias = (
            WeightParameter((heads.size,), (heads,), dtype=torch.float32) for _ in range(3)
        )
        self.norm = norm
        self.out_proj = RowParallelLinear(inner, hidden_size, bias=sizes.out_bias, context=context.under("out_proj"))
        self.sizes = sizes
        matrix = (heads.size, sizes.state_size, sizes.head_dim)
        self.spec = StateSpec(
            layer_id, (StatePart((sizes.kernel - 1, sum(self.widths))), StatePart(matrix, is_recurrent=True))
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens update the
        states.
        """
        projected: Tensor = self.in_proj(x)
        z, channels, time = torch.split(projected, [self.widths[0], sum(self.widths), len(self.D)], dim=-1)
        if self.sizes.factors is not None:
            z, channels, time = self._scaled(z, channels, time, self.sizes.factors)
        if self.sizes.least_step:
            # The step is softplus(time + dt_bias), which grows with time.
            least = math.log(math.expm1(self.sizes.least_step))
            time = torch.maximum(time, (least - self.dt_bias).to(time.dtype))
        found = self.through((channels, time), batch)
        out: Tensor = self.out_proj(self.norm(batch.wanted(found).flatten(1), batch.wanted(z)))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        """Processes one new token of each row. inputs: channels, and the time steps as they were projected. Returns [R,
        heads, head_dim].
        """
        (channels, time), (recent, matrix) = inputs, state
        convolved = conv_step(channels, self.conv1d.taps, recent, at, self.conv1d.bias)
        return scan_step(*self._heads(convolved), time, self.dt_bias, self.A_log, self.D, matrix, at)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (channels, time), (recent, matrix) = inputs, state
        convolved = conv_runs(channels, self.conv1d.taps, recent, runs, self.conv1d.bias)
        return scan_runs(*self._heads(convolved), time, self.dt_bias, self.A_log, self.D, matrix, runs)

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits the convolved channels into inputs [N, heads, head_dim], and the write and read vectors, [N, groups,
        state_size] each.
        """
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
    """Computes norm(x * silu(gate)), in parts that are normed each by itself."""

    def __init__(self, section: Section, groups: int, eps: float, context: LayerContext) -> None:
        """`section`: this rank's part of the elements. `groups`: number of groups in this part."""
        super().__init__()
        self.weight = WeightParameter((section.size,), (section,), dtype=context.dtype)
        self.weight.centre = 1.0
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return gated_group_norm(x, self.weight, gate, self.eps, self.groups)


class NormThenGate(GateThenNorm):
    """Computes norm(x) * silu(gate)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        parts = (len(x), self.groups, x.shape[-1] // self.groups)
        normed = gated_rms_norm(x.view(parts), self.weight.view(parts[1:]), gate.reshape(parts), self.eps)
        return normed.view_as(x)


class SharedParts:
    """Parts of the heads' output, each of which several ranks hold together."""

    def __init__(self, section: Section, parts: int, tp: Group) -> None:
        """`section`: this rank's part of the elements, which lies in one of `parts` groups."""
        self._tp = tp
        self._mine = tp.rank * parts // tp.size
        self._size = section.full // parts
        self._sum = torch.zeros(parts, section.size)
        self._sum[self._mine] = 1.0

    def mean_square(self, values: Tensor) -> Tensor:
        """Returns the mean square over the whole part, [N, 1], of values [N, size of the section], float32."""
        # A matrix product: that op also has a form whose rows do not depend on the rows beside them. Other parts get
        # zeros from this rank.
        squares = self._tp.all_reduce(linear(values.square(), self._sum, None))
        return squares[:, self._mine : self._mine + 1] / self._size


class SharedGateThenNorm(GateThenNorm):
    """Computes norm(x * silu(gate)) on ranks that share a group. The formulas are those of the ops that the other
    classes call.
    """

    def __init__(self, section: Section, groups: int, eps: float, context: LayerContext) -> None:
        """`groups`: number of groups of all elements, fewer than ranks."""
        super().__init__(section, 1, eps, context)
        self.shared = SharedParts(section, groups, context.tp)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.weight * self._normed(x.float() * F.silu(gate.float())).to(x.dtype)

    def _normed(self, values: Tensor) -> Tensor:
        return values * torch.rsqrt(self.shared.mean_square(values) + self.eps)


class SharedNormThenGate(SharedGateThenNorm):
    """Computes norm(x) * silu(gate) on ranks that share a group."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return (self.weight * self._normed(x.float()).to(x.dtype) * F.silu(gate.float())).to(x.dtype)


def gated_norm(section: Section, groups: int, eps: float, context: LayerContext, *, gate_first: bool) -> nn.Module:
    """Returns the norm of what a mixer's heads give, of which this rank has `section`. `groups`: parts of the whole."""
    if (own := groups // context.tp.size) == 0:
        return (SharedGateThenNorm if gate_first else SharedNormThenGate)(section, groups, eps, context)
    return (GateThenNorm if gate_first else NormThenGate)(section, own, eps, context)


class GateAlone(nn.Module):
    """Computes x * silu(gate)."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * F.silu(gate)
