"""What nearly every decoder is made of: attention over pages, and a gated MLP.

Sizes are the whole model's; the linears take this rank's share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, Rotation
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import GatedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, act: str, *, bias: bool = False, context: LayerContext
    ) -> None:
        super().__init__()
        self.gate_up_proj = GatedColumnParallelLinear(
            hidden_size, intermediate_size, gated_activation(act), bias=bias, context=context.under("gate_up_proj")
        )
        self.down_proj = RowParallelLinear(
            intermediate_size, hidden_size, bias=bias, context=context.under("down_proj")
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.gate_up_proj(x))
        return out


class PagedAttention(nn.Module):
    """Projections, norms of heads and rotary positions where there are such, attention, output projection."""

    def __init__(
        self,
        hidden_size: int,
        spec: AttentionSpec,
        rotary: RotaryEmbedding | None,
        *,
        head_norms: Callable[[], RMSNorm] | None = None,
        bias: bool = False,
        output_bias: bool = False,
        context: LayerContext,
    ) -> None:
        """`spec` counts the heads of the whole model. `head_norms` makes a norm of heads, for queries and for keys;
        without `rotary` there must be none.
        """
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            hidden_size, spec.head_dim, spec.num_heads, spec.num_kv_heads, bias=bias, context=context.under("qkv_proj")
        )
        self.o_proj = RowParallelLinear(
            spec.num_heads * spec.head_dim, hidden_size, bias=output_bias, context=context.under("o_proj")
        )
        self.rotary = rotary
        self.attn = RadixAttention(
            replace(spec, num_heads=self.qkv_proj.num_heads, num_kv_heads=self.qkv_proj.num_kv_heads)
        )
        assert rotary is not None or head_norms is None, "heads are normed on their way to being turned"
        self.q_norm = None if head_norms is None else head_norms()
        self.k_norm = None if head_norms is None else head_norms()

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden_size] -> [W, hidden_size], of the wanted tokens."""
        q, k, v = self.qkv_proj.forward_split(x)
        out: Tensor = self.o_proj(self.attn(q, k, v, batch, self.rotation()))
        return out

    def rotation(self) -> Rotation | None:
        """What happens to heads before they attend."""
        if self.rotary is None:
            return None
        if self.q_norm is None or self.k_norm is None:
            return Rotation(self.rotary.cos_sin)
        return Rotation(self.rotary.cos_sin, (self.q_norm.gain, self.k_norm.gain, self.q_norm.eps))
