"""A mixture of experts in the place of a gated MLP: a router, and experts of which each token goes through a few.

The experts' inner sizes are split over the ranks of the tensor-parallel group; every rank routes alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import workspace_per_token
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.moe.method import ExpertSizes
from mysglang.srt.layers.moe.router import ROUTERS, Routing
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized


class Experts(nn.Module):
    """Gated MLPs side by side."""

    def __init__(
        self,
        experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        *,
        context: LayerContext,
    ) -> None:
        """intermediate_size: of each expert, whole."""
        super().__init__()
        self.tp: Group = context.tp
        self.activation = activation
        self.method = context.quant.experts_method(context.prefix)
        inner = Section.split(intermediate_size, context.tp.rank, context.tp.size)
        self.method.create_weights(self, ExpertSizes(experts, hidden_size, inner), context.dtype)

    def process_weights_after_loading(self) -> None:
        self.method.process_weights_after_loading(self)

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Let weights be loaded again; see `LinearMethod`."""
        self.method.reopen_weights(self, layouts)

    def values_of(self, name: str) -> Tensor:
        """Of its parameter of that name: the values that it computes with."""
        return self.method.plain_weight(self, name)

    def forward(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """x: [N, hidden]; experts of each row and their gates: [N, top_k]. Returns [N, hidden]."""
        return self.tp.all_reduce(self.method.apply(self, x, ids, gates, self.activation))


class MixtureOfExperts(nn.Module):
    """The sum over a token's experts of gate * expert(x)."""

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        intermediate_size: int,
        activation: Activation,
        routing: Routing,
        *,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.routing = routing
        # A router is small, and what it rounds decides between experts: it is never quantized.
        self.gate = ReplicatedLinear(hidden_size, experts, context=replace(context.under("gate"), quant=Unquantized()))
        self.experts = Experts(experts, hidden_size, intermediate_size, activation, context=context.under("experts"))
        self.workspace_per_token = workspace_per_token(
            top_k=routing.top_k, width=hidden_size, inner=intermediate_size // context.tp.size, dtype=context.dtype
        )
        """Bytes that the experts take for a token, beside x and what is returned."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] -> [N, hidden]."""
        ids, gates = ROUTERS[self.routing.kind](self.gate(x), self.routing)
        out: Tensor = self.experts(x, ids, gates)
        return out
