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
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.activation import UNGATED, Activation
from mysglang.srt.kernels.experts import Biases, add_gated, experts_and_shared, workspace_per_token
from mysglang.srt.kernels.experts import SharedExpert as SharedWeights
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import FeedForward, GatedMLP, PlainMLP
from mysglang.srt.layers.linear import ReplicatedLinear
from mysglang.srt.layers.moe.method import ExpertSizes
from mysglang.srt.layers.moe.parameter import FusedLayout
from mysglang.srt.layers.moe.router import Router, Routing
from mysglang.srt.layers.parameter import Section, WeightParameter
from mysglang.srt.layers.quantization.unquantized import Unquantized

BIASES = ("w13_bias", "w2_bias")


class Experts(nn.Module):
    """The routed experts of a layer: MLPs with an activation that is gated or not."""

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
        """`intermediate_size`: inner size of each expert, over all ranks. `bias`: True if both products have a bias.
        `fused`: the layout of a checkpoint that has all experts in one tensor.
        """
        super().__init__()
        self.tp: Group = context.tp
        self.activation = activation
        self.method = context.quant.experts_method(context.prefix)
        inner = Section.split(intermediate_size, context.tp.rank, context.tp.size)
        sizes = ExpertSizes(experts, hidden_size, inner, fused, gated=activation not in UNGATED)
        self.method.create_weights(self, sizes, context.dtype)
        self.w13_bias = self.w2_bias = None
        if bias:
            whole = Section(hidden_size, 0, hidden_size)
            self.w13_bias = sizes.parameter((len(sizes.inwards) * inner.size,), sizes.inwards, context.dtype)
            self.w2_bias = sizes.parameter((hidden_size,), (whole,), context.dtype)

    def process_weights_after_loading(self) -> None:
        self.method.process_weights_after_loading(self)

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Makes the weights loadable again; see `LinearMethod`."""
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

    def with_shared(
        self, x: Tensor, ids: Tensor, gates: Tensor, shared: GatedMLP | PlainMLP, share: Tensor | None
    ) -> Tensor | None:
        """Returns `forward` plus shared(x), an MLP with the same activation, times its share as `kernels/experts.py`
        describes it; None if the weights of either are not plain.
        """
        weights, first_and_second = self.method.dense_weights(self), shared.dense_weights()
        if weights is None or first_and_second is None:
            return None
        both = SharedWeights(*first_and_second, share)
        parts = experts_and_shared(x, *weights, ids, gates, self.activation, self._biases(), both)
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
    build: Callable[[LayerContext], GatedMLP | PlainMLP]
    """The module, with the activation of the experts: x [N, hidden] -> [N, hidden], which is not x itself."""
    gated: bool
    """True if the output is multiplied by the sigmoid of a projection of x."""


class SharedGate(ReplicatedLinear):
    """The gate of a shared expert: the sigmoid of a projection to one number. It is never quantized, like a router."""

    def __init__(self, hidden_size: int, context: LayerContext) -> None:
        super().__init__(hidden_size, 1, context=replace(context, quant=Unquantized()))

    def add(self, shared: Tensor, mixed: Tensor, x: Tensor) -> Tensor:
        """Returns mixed + gate(x) * shared, in the memory of `shared`. All: [N, hidden]."""
        return add_gated(shared, mixed, x, self.share)

    @property
    def share(self) -> Tensor:
        """The weight [1, hidden]."""
        weight = self.weight
        assert isinstance(weight, Tensor)
        return weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow:
    """Routed experts between two projections: to vectors of another size, and back."""

    size: int
    """Size of what the experts take and give."""
    before: str
    """Name of the first projection in the mixture."""
    behind: str
    bias: bool


class MixtureOfExperts(FeedForward):
    """Computes the sum over a token's experts of gate * expert(x), plus shared(x) if there is a shared expert."""

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        intermediate_size: int,
        activation: Activation,
        routing: Routing,
        *,
        shared: SharedExpert | None = None,
        narrow: Narrow | None = None,
        bias: bool = False,
        fused: FusedLayout | None = None,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.gate = Router(hidden_size, experts, routing, context.under("gate"))
        width = hidden_size if narrow is None else narrow.size
        self.experts = Experts(
            experts,
            width,
            intermediate_size,
            activation,
            bias=bias,
            fused=fused,
            context=context.under("experts"),
        )
        self._mixed = self._mix_scaled if routing.scales_input else self._mix
        # In a tuple, where torch does not count them again: they are children by their checkpoint's names.
        self._around: tuple[ReplicatedLinear, ...] = ()
        if narrow is not None:
            assert not routing.scales_input, "their input is not that of the router"
            sizes = (narrow.before, hidden_size, width), (narrow.behind, width, hidden_size)
            self._around = tuple(
                ReplicatedLinear(inputs, outputs, bias=narrow.bias, context=context.under(name))
                for name, inputs, outputs in sizes
            )
            for (name, *_), linear in zip(sizes, self._around, strict=True):
                self.add_module(name, linear)
            self._mixed = self._mix_narrow
        self.workspace_per_token = workspace_per_token(
            top_k=routing.top_k, width=width, inner=intermediate_size // context.tp.size, dtype=context.dtype
        )
        """Bytes that the experts take for a token, in addition to x and the result."""
        self._shared: tuple[GatedMLP | PlainMLP | None, SharedGate | None] = None, None
        if shared is not None:
            # Registered by the names of the checkpoint, which differ; kept in a tuple so that torch does not register
            # them twice.
            expert = shared.build(context.under(shared.name))
            self.add_module(shared.name, expert)
            gate = None
            if shared.gated:
                gate = self.shared_expert_gate = SharedGate(hidden_size, context.under("shared_expert_gate"))
            self._shared = expert, gate
        self._joins_shared = shared is not None and narrow is None and not routing.scales_input

    def in_step(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        out: Tensor = self(x, batch.live_rows)
        return out

    def forward(self, x: Tensor, live_rows: Tensor | None = None) -> Tensor:
        """Sends each token to its experts and adds up their outputs: [N, hidden] -> [N, hidden]. live_rows: as of
        `Router.route`.
        """
        ids, gates = self.gate.route(x, live_rows)
        expert, gate = self._shared
        if expert is None:
            return self._mixed(x, ids, gates)
        if self._joins_shared:
            share = None if gate is None else gate.share
            if (both := self.experts.with_shared(x, ids, gates, expert, share)) is not None:
                return both
        shared: Tensor = expert(x)
        mixed = self._mixed(x, ids, gates)
        return shared.add_(mixed) if gate is None else gate.add(shared, mixed, x)

    def _mix(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        out: Tensor = self.experts(x, ids, gates)
        return out

    def _mix_narrow(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Returns behind(the sum over a token's experts of gate * expert(before(x)))."""
        before, behind = self._around
        out: Tensor = behind(self.experts(before(x), ids, gates))
        return out

    def _mix_scaled(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """Returns the sum over a token's experts of expert(gate * x)."""
        rows, top_k = ids.shape
        given = (x[:, None] * gates[..., None].to(x.dtype)).flatten(0, 1)
        each: Tensor = self.experts(given, ids.view(-1, 1), torch.ones_like(gates).view(-1, 1))
        return each if top_k == 1 else each.view(rows, top_k, -1).sum(dim=1)
