"""GatedDeltaNet: linear attention whose layer keeps one state for each request (Qwen3-Next).

    x ─┬─ in_proj_qkvz ─┬─ q k v ─ convolution ─ gated delta rule ─ norm * silu(z) ─ out_proj
       │                └─ z ───────────────────────────────────────┘
       └─ in_proj_ba ─── b: strength, a: decay ─┘

The formulas and their source stand in `kernels/linear_attention.py`. Which state a row has is said by the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, StateSpec, StateStep
from mysglang.srt.kernels.linear_attention import conv_run, conv_step, delta_run, delta_step, gated_rms_norm
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Of one gated delta net."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`."""
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution sees, the token itself included."""

    @property
    def shared(self) -> int:
        """Value heads of each key head."""
        return self.value_heads // self.key_heads


class GatedDeltaNet(nn.Module):
    """Whole key heads, with their value heads, to a rank."""

    def __init__(self, layer_id: int, hidden_size: int, sizes: DeltaSizes, eps: float, context: LayerContext) -> None:
        """`sizes`: of the whole model."""
        super().__init__()
        rank, ranks = context.tp.rank, context.tp.size
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        # Grouped by key head: its query, its key, the values and the gates of its value heads; strengths, decays.
        self.in_proj_qkvz = ColumnParallelLinear(
            hidden_size, 2 * (keys + values), context=context.under("in_proj_qkvz")
        )
        # Small, and what it rounds is multiplied into the state at every token: it is never quantized.
        plain = replace(context.under("in_proj_ba"), quant=Unquantized())
        self.in_proj_ba = ColumnParallelLinear(hidden_size, 2 * sizes.value_heads, context=plain)
        sections = tuple(Section.split(size, rank, ranks) for size in (keys, keys, values))
        self.conv1d = ShortConvolution(sections, sizes.kernel, context)
        channels = sum(section.size for section in sections)
        heads = Section.split(sizes.value_heads, rank, ranks)
        self.A_log = WeightParameter((heads.size,), (heads,), dtype=torch.float32)
        self.dt_bias = WeightParameter((heads.size,), (heads,), dtype=torch.float32)
        self.norm = GatedRMSNorm(sizes.value_dim, eps, context)
        self.out_proj = RowParallelLinear(values, hidden_size, context=context.under("out_proj"))
        self.sizes = replace(sizes, key_heads=Section.split(sizes.key_heads, rank, ranks).size, value_heads=heads.size)
        self.spec = StateSpec(layer_id, (sizes.kernel - 1, channels), (heads.size, sizes.key_dim, sizes.value_dim))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden_size] -> [W, hidden_size], of the wanted tokens. All tokens go through the states."""
        assert batch.states is not None, "the step says nothing of states, and the model has some"
        channels, z, decay, strength = self._projected(x)
        attended = self._attend(channels, decay, strength, batch.states)
        out: Tensor = self.out_proj(self.norm(batch.wanted(attended), batch.wanted(z)).flatten(1))
        return out

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[T, channels] of the convolution, gates [T, value_heads, value_dim], and the logarithm of the decay and the
        strength, [T, value_heads] float32 both.
        """
        sizes = self.sizes
        values = sizes.shared * sizes.value_dim
        groups = self.in_proj_qkvz(x).unflatten(1, (sizes.key_heads, -1))
        q, k, v, z = groups.split([sizes.key_dim, sizes.key_dim, values, values], dim=-1)
        b, a = self.in_proj_ba(x).float().unflatten(1, (sizes.key_heads, -1)).chunk(2, dim=-1)
        decay = -self.A_log.exp() * F.softplus(a.flatten(1) + self.dt_bias)
        channels = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), dim=-1)
        z = z.flatten(1).unflatten(1, (sizes.value_heads, sizes.value_dim))
        return channels, z, decay, b.flatten(1).sigmoid()

    def _attend(self, channels: Tensor, decay: Tensor, strength: Tensor, step: StateStep) -> Tensor:
        """[T, value_heads, value_dim]."""
        recent, matrix = step.store.of(self.spec.layer_id)
        weight = self.conv1d.weight.squeeze(1)
        if step.single_tokens is None and not step.runs:
            return delta_step(
                *self._heads(conv_step(channels, weight, recent, step.single)), decay, strength, matrix, step.single
            )
        out = channels.new_empty(len(channels), self.sizes.value_heads, self.sizes.value_dim)
        if step.single_tokens is not None:
            at = step.single_tokens
            heads = self._heads(conv_step(channels.index_select(0, at), weight, recent, step.single))
            rates = decay.index_select(0, at), strength.index_select(0, at)
            out.index_copy_(0, at, delta_step(*heads, *rates, matrix, step.single))
        for start, end, state, checkpoint in step.runs:
            part = slice(start, end)
            heads = self._heads(conv_run(channels[part], weight, recent, state))
            out[part] = delta_run(*heads, decay[part], strength[part], matrix, state)
            if checkpoint is not None:
                recent[checkpoint], matrix[checkpoint] = recent[state], matrix[state]
        return out

    def _heads(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [N, key_heads, key_dim] and values [N, value_heads, value_dim] of what was convolved."""
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = channels[:, :keys], channels[:, keys : 2 * keys], channels[:, 2 * keys :]
        shape = (len(channels), sizes.key_heads, sizes.key_dim)
        return q.reshape(shape), k.reshape(shape), v.reshape(len(channels), sizes.value_heads, sizes.value_dim)


class ShortConvolution(nn.Module):
    """The weight of a causal convolution of each channel by itself: [channels, 1, kernel]."""

    def __init__(self, sections: tuple[Section, ...], kernel: int, context: LayerContext) -> None:
        super().__init__()
        channels = sum(section.size for section in sections)
        self.weight = WeightParameter((channels, 1, kernel), sections, dtype=context.dtype)


class GatedRMSNorm(nn.Module):
    """An RMSNorm of each head, times silu(gate)."""

    def __init__(self, size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.weight = WeightParameter((size,), dtype=context.dtype)
        self.weight.centre = 1.0
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Both [N, heads, size]."""
        return gated_rms_norm(x, self.weight, gate, self.eps)
