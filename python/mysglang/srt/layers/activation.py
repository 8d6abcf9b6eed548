"""Gated activations by the names that config.json gives them."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from mysglang.srt.kernels.op import Op

_BY_NAME: dict[str, Op[[Tensor], Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_new": gelu_tanh_and_mul,
    "gelu_pytorch_tanh": gelu_tanh_and_mul,
}


def gated_activation(name: str) -> Op[[Tensor], Tensor]:
    """[..., 2 * d] -> [..., d]. Raises ConfigError for a function that no kernel knows."""
    if name not in _BY_NAME:
        raise ConfigError(f"config.json: hidden_act {name!r} is not supported; supported are " + ", ".join(_BY_NAME))
    return _BY_NAME[name]
