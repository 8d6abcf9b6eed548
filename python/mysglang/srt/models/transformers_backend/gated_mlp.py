"""MLPs of transformers that compute down(act(gate(x)) * up(x)): gate and up become one product."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from mysglang.srt.layers.activation import plain_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.models.dense_decoder import DenseMlp, dense_mlp
from mysglang.srt.models.weight_names import Target

LINEARS = ("gate_proj", "up_proj", "down_proj")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
"""The activations that our kernels for gated products compute."""


class ForeignMLP(GatedMLP):
    """Our gated MLP in place of transformers' module. The input may have any leading dimensions."""

    def out_width(self, x: Tensor) -> int:
        return x.shape[-1]

    def described(self) -> DenseMlp:
        return dense_mlp(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)


def gated_mlp_like(module: nn.Module, context: LayerContext) -> ForeignMLP | None:
    """Builds our gated MLP in place of `module`, parameters uninitialised; None if it is no gated MLP.

    What its forward pass computes is found by trying small random numbers, not from its name.
    """
    children = dict(module.named_children())
    linears = [children.pop(name, None) for name in LINEARS]
    if set(children) != {"act_fn"} or any(True for _ in module.parameters(recurse=False)):
        return None
    gate, up, down = linears
    if not (type(gate) is nn.Linear and type(up) is nn.Linear and type(down) is nn.Linear):
        return None
    sizes = {(gate.in_features, gate.out_features), (up.in_features, up.out_features)}
    biases = {each.bias is not None for each in (gate, up, down)}
    if sizes != {(down.out_features, down.in_features)} or len(biases) != 1:
        return None
    activation = activation_of(children["act_fn"])
    if activation is None or not _computes(module, activation):
        return None
    return ForeignMLP(gate.in_features, gate.out_features, activation, bias=biases.pop(), context=context)


def renamed_parts(name: str) -> dict[str, Target]:
    """Maps the names of parameters of the module to their places in ours, where they differ."""
    return {
        f"{name}.{linear}.{part}": Target(f"{name}.gate_up_proj.{part}", section)
        for section, linear in enumerate(LINEARS[:2])
        for part in ("weight", "bias")
    }


def activation_of(function: object) -> str | None:
    """Returns the name of the one of `ACTIVATIONS` that computes the same, found by values; None: none of them."""
    x = torch.linspace(-6, 6, 97, device="cpu")
    found = cast(Callable[[Tensor], Tensor], function)(x)
    same = (name for name in ACTIVATIONS if torch.allclose(found, plain_activation(name)(x), rtol=1e-5, atol=1e-6))
    return next(same, None)


def _computes(module: nn.Module, activation: str) -> bool:
    """True if the module's forward pass equals that of a gated MLP, checked by running it with small linears."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gate, up, down = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6)
        x = torch.randn(1, 3, 6)
    small = copy.copy(module)
    small._modules = {**module._modules, **dict(zip(LINEARS, (gate, up, down), strict=True))}
    try:
        found = small(x)
    except Exception:  # it uses its sizes, or takes something else
        return False
    expected = down(plain_activation(activation)(gate(x)) * up(x))
    return isinstance(found, Tensor) and found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6)
