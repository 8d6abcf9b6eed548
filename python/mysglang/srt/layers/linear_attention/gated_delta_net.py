"""GatedDeltaNet: linear attention whose layer keeps one state for each request (Qwen3-Next, Qwen3.5, OLMo Hybrid).

    x ─┬─ q k v ─ convolution ─ gated delta rule ─ norm * silu(z) ─ out_proj
       ├─ z ────────────────────────────────────────┘
       └─ b: strength, a: decay ─┘

The formulas and their source are in `kernels/linear_attention.py`. The step says which state each row has.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.beside import beside
from mysglang.srt.kernels.delta_rule import GatedNorm, delta_runs, delta_step
from mysglang.srt.kernels.gated_norm import gated_rms_norm
from mysglang.srt.kernels.short_convolution import conv_runs, conv_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.linear_attention.state_layer import ShortConvolution, StateLayer
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Sizes of one gated delta net."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution sees, the token itself included."""
    strongest: float = 1.0
    """Upper bound of the strength of a token."""

    @property
    def shared(self) -> int:
        """Value heads that share one key head."""
        return self.value_heads // self.key_heads


class GatedDeltaNet(StateLayer):
    """A gated delta net. Each rank has whole key heads with their value heads. Families differ in which inputs share a
    projection.
    """

    def __init__(self, layer_id: int, hidden_size: int, sizes: DeltaSizes, eps: float, context: LayerContext) -> None:
        """`sizes` are those of the whole model, not of this rank."""
        super().__init__()
        rank, ranks = context.tp.rank, context.tp.size
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        self.make_projections(hidden_size, sizes, context)
        sections = tuple(Section.split(size, rank, ranks) for size in (keys, keys, values))
        self.conv1d = ShortConvolution(sections, sizes.kernel, context)
        channels = sum(section.size for section in sections)
        heads = Section.split(sizes.value_heads, rank, ranks)
        self.A_log = WeightParameter((heads.size,), (heads,), dtype=torch.float32)
        self.dt_bias = WeightParameter((heads.size,), (heads,), dtype=torch.float32)
        self.norm = GatedRMSNorm(sizes.value_dim, eps, context)
        self.out_proj = RowParallelLinear(values, hidden_size, context=context.under("out_proj"))
        self.sizes = replace(sizes, key_heads=Section.split(sizes.key_heads, rank, ranks).size, value_heads=heads.size)
        matrix = (heads.size, sizes.key_dim, sizes.value_dim)
        self.spec = StateSpec(layer_id, (StatePart((sizes.kernel - 1, channels)), StatePart(matrix, is_recurrent=True)))

    @abstractmethod
    def make_projections(self, hidden_size: int, sizes: DeltaSizes, context: LayerContext) -> None:
        """Make the projections of the hidden state, by their names in a checkpoint. `sizes`: of the whole model."""

    @abstractmethod
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projects [T, hidden_size] to four tensors.

        They are: the input of the convolution, [T, channels], with queries, keys and values, head after head each;
        gates [T, value_heads * value_dim]; strengths and decays [T, value_heads], before their functions.
        """

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens update the
        states.
        """
        channels, z, b, a = self.projected(x)
        gates = z.view(len(z), self.sizes.value_heads, self.sizes.value_dim)
        mixed = self.through((channels, a, b, gates), batch)
        out: Tensor = self.out_proj(batch.wanted(mixed).flatten(1))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        """Processes one new token of each row. inputs: channels, what decays and strengths are computed from, and gates
        [R, value_heads, value_dim].
        """
        (channels, decays, strengths, gates), (recent, matrix) = inputs, state
        q, k, v = self._heads(conv_step(channels, self.conv1d.taps, recent, at))
        of_heads, norm = (self.A_log, self.dt_bias), self.norm.beside(gates)
        return delta_step(q, k, v, decays, strengths, *of_heads, matrix, at, self.sizes.strongest, norm)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (channels, decays, strengths, gates), (recent, matrix) = inputs, state
        heads = self._heads(conv_runs(channels, self.conv1d.taps, recent, runs))
        of_heads = self.A_log, self.dt_bias
        read = delta_runs(*heads, decays, strengths, *of_heads, matrix, runs, self.sizes.strongest)
        return gated_rms_norm(read, *self.norm.beside(gates))

    def _heads(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits the convolved channels into queries, keys [N, key_heads, key_dim] and values [N, value_heads,
        value_dim] of what was convolved.
        """
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = channels[:, :keys], channels[:, keys : 2 * keys], channels[:, 2 * keys :]
        shape = (len(channels), sizes.key_heads, sizes.key_dim)
        return q.reshape(shape), k.reshape(shape), v.reshape(len(channels), sizes.value_heads, sizes.value_dim)


class GroupedDeltaNet(GatedDeltaNet):
    """A delta net with two projections, whose outputs a checkpoint groups by key head (Qwen3-Next)."""

    def make_projections(self, hidden_size: int, sizes: DeltaSizes, context: LayerContext) -> None:
        keys, values, heads = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim, sizes.value_heads
        self.in_proj_qkvz = MergedColumnParallelLinear(
            hidden_size, (keys, keys, values, values), context=context.under("in_proj_qkvz")
        )
        plain = unquantized(context.under("in_proj_ba"))
        self.in_proj_ba = MergedColumnParallelLinear(hidden_size, (heads, heads), context=plain)
        # A checkpoint has, for each key head: its query, its key, the values and the gates of its value heads; and
        # their strengths and decays. Here they are in the order of the kernels, so that a step copies nothing.
        of_values = sizes.shared * sizes.value_dim
        self.in_proj_qkvz.stored_in_runs((sizes.key_dim, sizes.key_dim, of_values, of_values))
        self.in_proj_ba.stored_in_runs((sizes.shared, sizes.shared))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values = self.sizes.value_heads * self.sizes.value_dim
        small = beside(x, lambda: self.in_proj_ba(x))
        channels, z = self.in_proj_qkvz(x).tensor_split([-values], dim=-1)
        b, a = small().chunk(2, dim=-1)
        return channels, z, b, a


class SplitDeltaNet(GatedDeltaNet):
    """A delta net with one projection for what is convolved, one for the gates, and one for strengths and decays
    (Qwen3.5, OLMo Hybrid).
    """

    def make_projections(self, hidden_size: int, sizes: DeltaSizes, context: LayerContext) -> None:
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        self.in_proj_qkv = MergedColumnParallelLinear(
            hidden_size, (keys, keys, values), context=context.under("in_proj_qkv")
        )
        self.in_proj_z = ColumnParallelLinear(hidden_size, values, context=context.under("in_proj_z"))
        heads, plain = sizes.value_heads, unquantized(context.under("in_proj_ba"))
        self.in_proj_ba = MergedColumnParallelLinear(hidden_size, (heads, heads), context=plain)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        small = beside(x, lambda: self.in_proj_ba(x))
        channels, z = self.in_proj_qkv(x), self.in_proj_z(x)
        b, a = small().chunk(2, dim=-1)
        return channels, z, b, a


def unquantized(context: LayerContext) -> LayerContext:
    """Returns the context without quantization, for a small projection whose rounding error would enter the state at
    every token.
    """
    return replace(context, quant=Unquantized())


class GatedRMSNorm(nn.Module):
    """An RMSNorm of each head, times silu(gate)."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((size,), dtype=context.dtype)
        self.weight.centre = 1.0
        self.eps = eps

    def beside(self, gate: Tensor) -> GatedNorm:
        """Returns the norm with the gates [N, heads, size] of as many tokens."""
        return GatedNorm(self.weight, gate, self.eps)
