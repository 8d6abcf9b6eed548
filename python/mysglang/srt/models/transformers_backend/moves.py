"""Ways between two computations of a traced graph, made of ops that only move values: what such a way does is found by
moving numbers along it, and never concluded from its ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from mysglang.srt.models.transformers_backend.traced import Trace

_aten = torch.ops.aten


def _reshaped(x: Tensor, sizes: Sequence[int]) -> Tensor:
    # Values of a view do not depend on how they lie in memory, which may differ here.
    return x.reshape(sizes)


def _unchanged(x: Tensor, one: float) -> Tensor:
    return x


MOVES: Mapping[object, Callable[..., Tensor]] = {
    _aten.mul.Tensor: _unchanged,
    _aten.div.Tensor: _unchanged,
    _aten.view.default: _reshaped,
    _aten._unsafe_view.default: _reshaped,
    **{
        op: op
        for op in (
            _aten.alias.default,
            _aten.clone.default,
            _aten.detach.default,
            _aten.expand.default,
            _aten.permute.default,
            _aten.select.int,
            _aten.slice.Tensor,
            _aten.squeeze.dim,
            _aten.squeeze.dims,
            _aten.t.default,
            _aten.transpose.int,
            _aten.unsqueeze.default,
        )
    },
}
"""Op -> a function that moves values as it does. All take the moved tensor first."""


@dataclass(frozen=True, slots=True)
class Way:
    """The ops between two computations. `source`: the first of the two; `steps`: the ops in between, in order."""

    source: Node
    steps: tuple[Node, ...]

    def moved(self, x: Tensor, trace: Trace, rows: int) -> Tensor:
        """Returns the values x of the source, for so many rows, as they come to the end of the way. Raises ValueError
        if that depends on more than the number of rows.
        """
        for step in self.steps:
            sizes = map_arg(step.args[1:], lambda node: trace.size(node.meta["val"], rows))
            x = MOVES[step.target](x, *sizes, **step.kwargs)
        return x


def way_to(node: Node) -> Way:
    """Returns the way from the computation whose values `node` has, maybe moved."""
    steps: list[Node] = []
    while _moves(node):
        steps.append(node)
        node = cast(Node, node.args[0])
    return Way(node, tuple(reversed(steps)))


def _moves(node: Node) -> bool:
    """True if an op only moves the values of its first argument. So does a factor, or a divisor, of one, which a model
    has that uses none.
    """
    if node.target in (_aten.mul.Tensor, _aten.div.Tensor):
        _, factor = node.args
        return isinstance(factor, int | float) and factor == 1
    return node.op == "call_function" and node.target in MOVES


def shape_of(node: Node, trace: Trace, rows: int) -> tuple[int, ...]:
    """Returns the shape of what a node computes for so many rows."""
    value: Any = node.meta["val"]
    return tuple(trace.size(size, rows) for size in value.shape)


def numbered(node: Node, trace: Trace, rows: int) -> Tensor:
    """Returns different integers in the place of the values of a node, for so many rows."""
    shape = shape_of(node, trace, rows)
    return torch.arange(math.prod(shape), device="cpu").view(shape)


def keeps_rows(found: Tensor, source: Tensor) -> bool:
    """True if both have the same rows, their last dimension, in the same order."""
    return found.shape[-1] == source.shape[-1] and torch.equal(found.flatten(), source.flatten())


def keeps_heads(found: Tensor, source: Tensor, heads: int, dim: int) -> bool:
    """True if `found`, [1, heads, T, dim], has the values of `source`, [..., heads * dim] of T tokens, by heads."""
    if source.shape[-1] != heads * dim:
        return False
    return torch.equal(found, source.reshape(1, -1, heads, dim).transpose(1, 2))


def has_whole_heads(found: Tensor, dim: int) -> bool:
    """True if each row of `found` is a head of a source that was numbered: `dim` values from a multiple of it on."""
    rows = found.reshape(-1, dim) if found.shape[-1] == dim else found.new_zeros(1, 1)
    first = rows[:, :1]
    return (
        rows.shape[1] == dim
        and not bool((first % dim).any())
        and torch.equal(rows, first + torch.arange(dim, device=rows.device))
    )
