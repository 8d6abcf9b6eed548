"""A mixture of experts in the place of a gated MLP: a router, experts of which each token goes through a few, and
maybe an MLP that every token goes through.

The experts' inner sizes are split over the ranks of the tensor-parallel group; every rank routes alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.kernels.experts import Biases, experts_and_shared, workspace_per_token
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.moe.method import ExpertSizes
from mysglang.srt.layers.moe.parameter import FusedLayout
from mysglang.srt.layers.moe.router import Router, Routing
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized

BIASES = ("w13_bias", "w2_bias")


class Experts(nn.Module):
    """A mixture of experts: a router, gated MLPs, and possibly a shared expert."""

    def __init__(
        self,
        experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        *,
        bias: bool = False,
        fused: FusedLayout | None = None,
        context: LayerContext,
    ) -> None:
        """intermediate_size: of each expert, whole. bias: whether both products have one. fused: how a checkpoint has
        all experts in one tensor.
        """
        super().__init__()
        self.tp: Group = context.tp
        self.activation = activation
        self.method = context.quant.experts_method(context.prefix)
        inner = Section.split(intermediate_size, context.tp.rank, context.tp.size)
        sizes = ExpertSizes(experts, hidden_size, inner, fused)
        self.method.create_weights(self, sizes, context.dtype)
        self.w13_bias = self.w2_bias = None
        if bias:
            whole = Section(hidden_size, 0, hidden_size)
            self.w13_bias = sizes.parameter((2 * inner.size,), (inner, inner), context.dtype)
            self.w2_bias = sizes.parameter((hidden_size,), (whole,), context.dtype)

    def process_weights_after_loading(self) -> None:
        self.method.process_weights_after_loading(self)

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Let weights be loaded again; see `LinearMethod`."""
        self.method.reopen_weights(self, layouts)

    def values_of(self, name: str) -> Tensor:
        """Returns the values of the parameter of that name that the experts compute with."""
        if name in BIASES:
            bias = getattr(self, name)
            assert isinstance(bias, Tensor)
            return bias
        return self.method.plain_weight(self, name)

    def forward(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Computes the experts' weighted sum. x: [N, hidden]; ids and gates of each row's experts: [N, top_k]. Returns
        [N, hidden].
        """
        return self.tp.all_reduce(self.method.apply(self, x, ids, gates, self.activation, self._biases()))

    def with_shared(self, x: Tensor, ids: Tensor, gates: Tensor, shared: GatedMLP) -> Tensor | None:
        """Returns `forward` plus shared(x), a gated MLP with the same activation; None if the weights of either are not
        plain.
        """
        weights, first_and_second = self.method.dense_weights(self), shared.dense_weights()
        if weights is None or first_and_second is None:
            return None
        biases = self._biases()
        parts = experts_and_shared(x, *weights, ids, gates, self.activation, biases, first_and_second)
        return self.tp.all_reduce(parts)

    def _biases(self) -> Biases:
        if self.w13_bias is None or self.w2_bias is None:
            return None
        # The bias of down is added once, not once for each rank.
        return self.w13_bias, self.w2_bias if self.tp.rank == 0 else torch.zeros_like(self.w2_bias)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert that every token goes through, in addition to the routed ones."""

    name: str
    """Name of the module in the mixture."""
    build: Callable[[LayerContext], GatedMLP]
    """The module, with the activation of the experts: x [N, hidden] -> [N, hidden], which is not x itself."""
    gated: bool
    """True if the output is multiplied by the sigmoid of a projection of x."""


class MixtureOfExperts(nn.Module):
    """The sum over a token's experts of gate * expert(x), and shared(x) where there is such."""

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        intermediate_size: int,
        activation: Activation,
        routing: Routing,
        *,
        shared: SharedExpert | None = None,
        bias: bool = False,
        fused: FusedLayout | None = None,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.gate = Router(hidden_size, experts, routing, context.under("gate"))
        self.experts = Experts(
            experts,
            hidden_size,
            intermediate_size,
            activation,
            bias=bias,
            fused=fused,
            context=context.under("experts"),
        )
        self._mixed = self._mix_scaled if routing.scales_input else self.experts
        self.workspace_per_token = workspace_per_token(
            top_k=routing.top_k, width=hidden_size, inner=intermediate_size // context.tp.size, dtype=context.dtype
        )
        """Bytes that the experts take for a token, in addition to x and the result."""
        self._shared: tuple[GatedMLP | None, nn.Module | None] = None, None
        if shared is not None:
            # Registered by the names of the checkpoint, which differ; kept in a tuple so that torch does not register
            # them twice.
            expert = shared.build(context.under(shared.name))
            self.add_module(shared.name, expert)
            gate = None
            if shared.gated:
                plain = replace(context.under("shared_expert_gate"), quant=Unquantized())
                gate = self.shared_expert_gate = ReplicatedLinear(hidden_size, 1, context=plain)
            self._shared = expert, gate
        self._joins_shared = shared is not None and not shared.gated and not routing.scales_input

    def forward(self, x: Tensor) -> Tensor:
        """Sends each token to its experts and adds up their outputs: [N, hidden] -> [N, hidden]."""
        ids, gates = self.gate.route(x)
        expert, gate = self._shared
        if expert is None:
            out: Tensor = self._mixed(x, ids, gates)
            return out
        if self._joins_shared and (both := self.experts.with_shared(x, ids, gates, expert)) is not None:
            return both
        shared: Tensor = expert(x)
        if gate is not None:
            shared = gate(x).sigmoid() * shared
        return shared.add_(self._mixed(x, ids, gates))

    def _mix_scaled(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Returns the sum over a token's experts of expert(gate * x)."""
        rows, top_k = ids.shape
        given = (x[:, None] * gates[..., None].to(x.dtype)).flatten(0, 1)
        each: Tensor = self.experts(given, ids.view(-1, 1), torch.ones_like(gates).view(-1, 1))
        return each if top_k == 1 else each.view(rows, top_k, -1).sum(dim=1)
