"""Mixtures of experts of transformers models. All experts are in one module, and our kernels compute them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.integrations.moe import _default_apply_gate

from mysglang.srt.layers.activation import gated_activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseMlp
from mysglang.srt.models.transformers_backend.gated_mlp import activation_of
from mysglang.srt.models.transformers_backend.probe import Refused

NAMES = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""A parameter of transformers' experts -> that of ours."""


def are_experts(module: nn.Module) -> bool:
    """True if a module holds all experts of a layer, as defined by transformers' interface for experts."""
    return hasattr(module, "is_concatenated") and hasattr(module, "_apply_gate")


class ForeignExperts(Experts):
    """Our experts in place of transformers' module."""

    def out_width(self, x: Tensor) -> int:
        return x.shape[-1]

    def described(self) -> DenseMlp:
        raise CannotDescribe("it has experts that transformers' code chooses")

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
    """Builds our experts with the sizes of `module`, parameters uninitialised. Raises Refused for experts of another
    form.
    """
    check_form(module)
    gate_up = module.gate_up_proj
    assert isinstance(gate_up, Tensor)
    experts, inner, hidden = gate_up.shape
    activation = activation_of(module.act_fn)
    if activation is None:
        raise Refused(f"{type(module).__name__} has an activation that no kernel computes")
    return ForeignExperts(experts, hidden, inner // 2, gated_activation(activation), context=context)
