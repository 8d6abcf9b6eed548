"""use_our_rotary: lets attention modules of transformers rotate queries and keys by one kernel of ours.

A module of transformers calls a function of its file for that, which takes ten operations of torch. The function is
recognized by what it computes: only the one of Llama, on whole heads. All others stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from mysglang.srt.layers.rotary_embedding import turn_heads
from mysglang.srt.models.transformers_backend.interface import Rotate, current

ARGUMENTS = ["q", "k", "cos", "sin"]
"""The first parameters of such a function."""


def use_our_rotary(model: nn.Module) -> None:
    """Replaces the functions that modules of the model call, for this model alone: transformers' files keep theirs."""
    for module in model.modules():
        if (forward := _with_ours(type(module).forward)) is not None:
            module.forward = MethodType(forward, module)


@dataclass(frozen=True, slots=True)
class OurRotary:
    """Replaces a function of transformers. What it is given in another form than usual goes to that function."""

    theirs: Rotate

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        if more or len(arguments) != len(ARGUMENTS) or not _usual(*arguments):
            return self.theirs(*arguments, **more)
        return current().turn(self.theirs, *arguments)


def _usual(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """True if `turn_heads` takes these."""
    if q.dim() != 4 or k.dim() != 4 or len(q) != 1:
        return False
    angles = (1, q.shape[2], q.shape[3])
    alike = k.shape[2:] == q.shape[2:] and cos.shape == angles and sin.shape == angles
    dense = q.stride(-1) == k.stride(-1) == 1 and cos.is_contiguous() and sin.is_contiguous()
    return alike and dense and q.dtype == k.dtype == cos.dtype == sin.dtype


@cache
def _with_ours(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns the forward function of a class with our function in place of theirs; None if it calls none."""
    if not isinstance(forward, FunctionType):
        return None
    known = forward.__globals__
    ours = {
        name: OurRotary(known[name])
        for name in forward.__code__.co_names
        if isinstance(known.get(name), FunctionType) and _rotates(known[name])
    }
    if not ours:
        return None
    made = FunctionType(
        forward.__code__, {**known, **ours}, forward.__name__, forward.__defaults__, forward.__closure__
    )
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


@cache
def _rotates(function: Rotate) -> bool:
    """True if the function computes what `turn_heads` does. Cosines and sines are random, so that it shows which of
    them meet.
    """
    if list(inspect.signature(function).parameters)[: len(ARGUMENTS)] != ARGUMENTS:
        return False
    generator = torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        shapes = (1, 4, 3, 8), (1, 2, 3, 8), (1, 3, 8), (1, 3, 8)
        drawn = [torch.randn(shape, generator=generator) for shape in shapes]
        try:
            found = function(*drawn)
        except Exception:  # the function is not ours: it may want anything else
            return False
        expected = turn_heads(*drawn)
    if not isinstance(found, tuple) or len(found) != len(expected):
        return False
    return all(torch.allclose(one, same, atol=1e-6) for one, same in zip(found, expected, strict=True))
