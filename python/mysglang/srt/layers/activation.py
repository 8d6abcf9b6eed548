"""Activations by the names that config.json gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.activation import Activation

_BY_NAME: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swigluoai": "swigluoai",
}
_UNGATED_EXPERTS: dict[str, Activation] = {"relu2": "relu2"}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def plain_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Returns the activation function by its name. Raises ConfigError for an unknown one."""
    if name not in _PLAIN:
        raise _unknown(name, _PLAIN)
    return _PLAIN[name]


def gated_activation(name: str) -> Activation:
    """Returns the kernels' name of it. Raises ConfigError for a function that no kernel knows."""
    if name not in _BY_NAME:
        raise _unknown(name, _BY_NAME)
    return _BY_NAME[name]


def expert_activation(name: str, *, gated: bool) -> Activation:
    """Returns the kernels' name of an activation of experts, which may have no gate. Raises ConfigError for a function
    that no kernel knows.
    """
    if gated:
        return gated_activation(name)
    if name not in _UNGATED_EXPERTS:
        known = ", ".join(_UNGATED_EXPERTS)
        raise ConfigError(f"config.json: experts without a gate do not support {name!r}; they support {known}")
    return _UNGATED_EXPERTS[name]


def _unknown(name: str, known: Iterable[str]) -> ConfigError:
    """Returns the error for an activation that is not among `known`. It names no key, which families call
    differently.
    """
    # gpt-oss has this one, and no config.json names it.
    named = ", ".join(each for each in known if each != "swigluoai")
    return ConfigError(f"config.json: the activation {name!r} is not supported; supported are {named}")
