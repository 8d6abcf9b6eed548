"""Experts beside an MLP, as in Gemma 4: both are normed and added. The experts take the residual stream itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.experts import workspace_per_token
from mysglang.srt.kernels.norm import rms_norm
from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.layers.moe.parameter import FusedLayout
from mysglang.srt.layers.moe.router import Router, Routing
from mysglang.srt.layers.parameter import WeightParameter


class StreamRouter(Router):
    """A router on the residual stream, which is normed and multiplied by a number for each lane and by 1 /
    sqrt(hidden_size). The gate of each expert has a factor.
    """

    def __init__(self, hidden_size: int, experts: int, routing: Routing, eps: float, context: LayerContext) -> None:
        super().__init__(hidden_size, experts, routing, context)
        self.scale = WeightParameter((hidden_size,), dtype=context.dtype)
        self.expert_scale = WeightParameter((experts,), dtype=context.dtype)
        self.scale.centre = self.expert_scale.centre = 1.0
        self._eps, self._factor = eps, hidden_size**-0.5

    def values_of(self, name: str) -> Tensor:
        if name in ("scale", "expert_scale"):
            scale = getattr(self, name)
            assert isinstance(scale, Tensor)
            return scale
        return super().values_of(name)

    def route(self, x: Tensor, live_rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        ids, gates = super().route(rms_norm(x.float(), self.scale.float(), self._eps) * self._factor, live_rows)
        return ids, gates * self.expert_scale.index_select(0, ids.flatten()).view(ids.shape).to(torch.float32)


class MlpAndExperts(GatedMLP):
    """Computes norm(mlp(x)) + norm(experts(norm(stream)))."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        experts: int,
        expert_size: int,
        routing: Routing,
        fused: FusedLayout,
        norm: Callable[[], RMSNorm],
        context: LayerContext,
    ) -> None:
        """`expert_size`: inner size of each expert. `norm` makes a norm of hidden states."""
        super().__init__(hidden_size, intermediate_size, activation, context=context)
        self.norm_after_mlp, self.norm_before_experts, self.norm_after_experts = norm(), norm(), norm()
        self.router = StreamRouter(hidden_size, experts, routing, self.norm_after_mlp.eps, context.under("router"))
        gated, inside = gated_activation(activation), context.under("experts")
        self.experts = Experts(experts, hidden_size, expert_size, gated, fused=fused, context=inside)
        self.workspace_per_token = workspace_per_token(
            top_k=routing.top_k, width=hidden_size, inner=expert_size // context.tp.size, dtype=context.dtype
        )
        """Bytes that the experts take for a token, in addition to x and the result."""

    def beside(self, x: Tensor, stream: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the MLP plus the experts. x: the normed stream; both [N, hidden]. The stream is not changed."""
        ids, gates = self.router.route(stream, batch.live_rows)
        mixed: Tensor = self.experts(self.norm_before_experts(stream), ids, gates)
        out: Tensor = self.norm_after_mlp(self(x)) + self.norm_after_experts(mixed)
        return out
