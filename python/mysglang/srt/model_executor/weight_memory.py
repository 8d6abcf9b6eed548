"""The memory of a model's weights: its place and its size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the parameters, and of what some of them were laid out as for faster products."""
    return sum({id(tensor): tensor.nbytes for tensor in weights_of(model)}.values())


def addresses(model: nn.Module) -> tuple[int, ...]:
    """The addresses of all weights; those that oneDNN packed have no memory to be asked for, so their id stands in."""
    tensors = weights_of(model)
    return tuple(tensor.data_ptr() if tensor.layout is torch.strided else id(tensor) for tensor in tensors)


def weights_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters and what is kept of them in another form, some more than once."""
    for module in model.modules():
        yield from module.parameters(recurse=False)
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
