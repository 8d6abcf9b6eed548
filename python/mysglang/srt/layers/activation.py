"""Gated activations by the names that config.json gives them."""

from __future__ import annotations

from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.activation import Activation

_BY_NAME: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def gated_activation(name: str) -> Activation:
    """The kernels' name of it. Raises ConfigError for a function that no kernel knows."""
    if name not in _BY_NAME:
        raise ConfigError(f"config.json: hidden_act {name!r} is not supported; supported are " + ", ".join(_BY_NAME))
    return _BY_NAME[name]
