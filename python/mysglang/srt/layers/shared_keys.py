"""Attention over the keys and values of an earlier layer, as in the last layers of Gemma 3n and of Gemma 4's E models.

Brandon et al., "Reducing Transformer Key-Value Cache Size with Cross-Layer Attention" (arXiv 2405.12981).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.kernels.op import head_view
from mysglang.srt.kernels.rotary import rope
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import RowParallelLinear, SectionsLinear, split_kv_heads
from mysglang.srt.layers.parameter import Section, put_in_order
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import RotaryEmbedding


class SharedKeysAttention(nn.Module):
    """Attention that projects queries alone, and stores nothing."""

    def __init__(
        self,
        hidden_size: int,
        spec: AttentionSpec,
        rotary: RotaryEmbedding | None,
        *,
        head_norm: Callable[[], RMSNorm] | None = None,
        bias: bool = False,
        output_bias: bool = False,
        context: LayerContext,
    ) -> None:
        """`spec` counts the heads of the whole model, and its `layer_id` is that of the layer that stores. `head_norm`
        makes a norm of heads, before they are turned.
        """
        super().__init__()
        tp, dim = context.tp, spec.head_dim
        heads = Section.split(spec.num_heads, tp.rank, tp.size)
        # By the name of all three projections, of which a checkpoint has the first.
        self.qkv_proj = SectionsLinear(
            hidden_size,
            (Section(heads.full * dim, heads.start * dim, heads.size * dim),),
            bias=bias,
            context=context.under("qkv_proj"),
        )
        self.o_proj = RowParallelLinear(
            spec.num_heads * dim, hidden_size, bias=output_bias, context=context.under("o_proj")
        )
        self.q_norm = None if head_norm is None else head_norm()
        self.rotary = rotary
        if rotary is not None and rotary.order is not None:
            put_in_order(self.qkv_proj, rotary.order)
            if self.q_norm is not None:
                put_in_order(self.q_norm, rotary.order)
        kv_heads = split_kv_heads(spec.num_kv_heads, tp.rank, tp.size)
        self.attn = RadixAttention(replace(spec, num_heads=heads.size, num_kv_heads=kv_heads.size))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Computes attention: [T, hidden_size] -> [W, hidden_size], for the wanted tokens."""
        heads = head_view(self.qkv_proj(x), self.attn.spec.head_dim)
        if self.q_norm is not None:
            heads = self.q_norm(heads)
        if self.rotary is not None:
            rope(heads[:, :-1], heads[:, -1], batch.positions, self.rotary.cos_sin, False)
        out: Tensor = self.o_proj(self.attn.forward_stored(heads.flatten(1), batch))
        return out
