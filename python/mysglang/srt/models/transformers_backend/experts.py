"""Mixtures of experts of transformers, whose experts stand in one module: computed by our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from transformers.integrations.moe import _default_apply_gate

from mysglang.srt.layers.activation import gated_activation, plain_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.models.transformers_backend.probe import Refused

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
"""Those that our kernels for experts compute."""

NAMES = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""A parameter of transformers' experts -> that of ours."""


def are_experts(module: nn.Module) -> bool:
    """Whether a module holds all experts of a layer, as transformers' interface for experts says."""
    return hasattr(module, "is_concatenated") and hasattr(module, "_apply_gate")


class ForeignExperts(Experts):
    """Stands in the place of transformers' module."""

    def forward(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        return super().forward(x, ids.to(torch.int32), gates.float())


def check_form(module: nn.Module) -> None:
    """Raise Refused for experts of another form than gated MLPs without biases."""
    forms = {
        "matrices [input, output]": module.is_transposed,
        "biases": module.has_bias,
        "no gate": not module.has_gate,
        "gate and up in turn": not module.is_concatenated,
        "a gate of their own": vars(type(module)).get("_apply_gate") is not _default_apply_gate,
    }
    for form, has in forms.items():
        if has:
            raise Refused(f"{type(module).__name__} has experts with {form}, which are not served")


def experts_like(module: nn.Module, context: LayerContext) -> ForeignExperts:
    """Ours with the sizes of that one, parameters uninitialised. Raises Refused for experts of another form."""
    check_form(module)
    gate_up = module.gate_up_proj
    assert isinstance(gate_up, Tensor)
    experts, inner, hidden = gate_up.shape
    return ForeignExperts(experts, hidden, inner // 2, gated_activation(_activation(module)), context=context)


def _activation(module: nn.Module) -> str:
    """The name of the one that computes the same, found by values."""
    x = torch.linspace(-6, 6, 97, device="cpu")
    found = cast(Callable[[Tensor], Tensor], module.act_fn)(x)
    for name in ACTIVATIONS:
        if torch.allclose(found, plain_activation(name)(x), rtol=1e-5, atol=1e-6):
            return name
    raise Refused(f"{type(module).__name__} has an activation that no kernel computes")
