"""Cosines and sines of all positions, computed by the part of a traced graph that makes them of positions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from mysglang.srt.models.dense_decoder import CannotDescribe
from mysglang.srt.models.transformers_backend.traced import Trace

PIECE = 4096
"""Positions that are computed at a time."""

BOUND = 1e-2
"""Largest difference between two computations of an angle: more than one rounding to bfloat16."""


Angles: TypeAlias = tuple[Node, Node]
"""The nodes of cosines and of sines, [1, rows, head_dim] each."""


@torch.no_grad()
def angle_table(trace: Trace, angles: Angles, tensors: Sequence[Tensor], length: int) -> Tensor:
    """Returns [length, head_dim] float32: cosines of the first half of a head at each position, then their sines.

    trace: of several rows; tensors: the module's parameters and buffers. Raises CannotDescribe if an angle depends on
    more than the position of its row, or if the halves of a head differ.
    """
    found = _Angles(trace, angles, tensors)
    positions = torch.arange(length, device=tensors[0].device)
    first, second = (angle.meta["val"].shape[-1] // 2 for angle in angles)
    # Filled piece by piece: a device may have little room beside weights and pages.
    table = torch.empty(length, first + second, dtype=torch.float32, device=positions.device)
    for piece, rows in zip(torch.split(positions, PIECE), torch.split(table, PIECE), strict=True):
        # Two positions at least, because the graph is for several rows.
        whole = found.at(piece if len(piece) > 1 else piece.repeat(2))[: len(piece)]
        cos, again, sin, sin_again = whole.chunk(4, dim=1)
        if not (torch.equal(cos, again) and torch.equal(sin, sin_again)):
            raise CannotDescribe("the halves of its heads are turned by different angles")
        rows.copy_(torch.cat((cos, sin), dim=1))
    last = length - 1
    for some in ([last, 0, last // 2], [0, last // 3], [last, last]):
        _check(found, positions[some], table)
    return table


@torch.no_grad()
def check_one_row(trace: Trace, angles: Angles, tensors: Sequence[Tensor], table: Tensor) -> None:
    """Raises CannotDescribe unless the graph of a single row makes the angles of the table."""
    found = _Angles(trace, angles, tensors)
    for position in {0, len(table) // 2, len(table) - 1}:
        _check(found, torch.tensor([position], device=table.device), table)


def _check(found: _Angles, positions: Tensor, table: Tensor) -> None:
    cos, sin = table[positions].chunk(2, dim=1)
    if not torch.allclose(found.at(positions), torch.cat((cos, cos, sin, sin), dim=1), rtol=0, atol=BOUND):
        raise CannotDescribe("the angles of a row depend on other rows")


class _Angles:
    """Computes two nodes of a graph for any positions."""

    def __init__(self, trace: Trace, angles: Angles, tensors: Sequence[Tensor]) -> None:
        self._trace = trace
        self._angles = angles
        places = list(trace.graph.graph.find_nodes(op="placeholder"))
        self._ids, self._positions, *others = places
        self._known = dict(zip(others, tensors, strict=True))
        self._order = self._needed()

    def at(self, positions: Tensor) -> Tensor:
        """Returns cosines and sines side by side: [T] int64 -> [T, 2 * head_dim] float32."""
        values: dict[Node, Any] = {**self._known, self._positions: positions}
        for node in self._order:
            values[node] = self._computed(node, values, len(positions))
        return torch.cat([values[each][0].float() for each in self._angles], dim=1)

    def _needed(self) -> list[Node]:
        """Returns the nodes that must be computed, in order. Raises CannotDescribe for what is no plain arithmetic."""
        wanted, found = list(self._angles), set[Node]()
        while wanted:
            node = wanted.pop()
            # Weights may be updated, and a table would stay as it is.
            if isinstance(self._known.get(node), nn.Parameter):
                raise CannotDescribe("its angles depend on weights")
            if node in found or node in self._known or node is self._positions:
                continue
            found.add(node)
            if not _is_size(node):
                self._check_op(node)
                wanted += node.all_input_nodes
        return [node for node in self._trace.graph.graph.nodes if node in found]

    def _check_op(self, node: Node) -> None:
        if node is self._ids:
            raise CannotDescribe("its angles depend on tokens")
        if node.op == "get_attr" or node.target is operator.getitem:
            return
        op = node.target
        plain = isinstance(op, torch._ops.OpOverload) and op.namespace in ("aten", "prims")
        if not plain or torch.Tag.nondeterministic_seeded in cast(torch._ops.OpOverload, op).tags:
            raise CannotDescribe(f"its angles are made by {op}")

    def _computed(self, node: Node, values: dict[Node, Any], rows: int) -> Any:
        if _is_size(node):
            return self._trace.size(node.meta["val"], rows)
        if node.op == "get_attr":
            return getattr(self._trace.graph, cast(str, node.target))
        arguments: Any = map_arg(node.args, values.__getitem__)
        more: Any = map_arg(node.kwargs, values.__getitem__)
        return cast(Callable[..., Any], node.target)(*arguments, **more)


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), int | torch.SymInt)
