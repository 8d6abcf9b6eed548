"""Reading: the chain of layers in a traced graph, from the embeddings to the last norm, walked backwards.

    residual stream ─┬─ norm ─ three projections ─ heads ─ (norms) ─ turned ─ attention ─ projection ─┐
                     └────────────────────────────────────────────────────────────────────────────── + ─┬─ norm ─ MLP ─┐
                                                                                                        └───────────── +

Whatever else is on the way is a reason to refuse, by its name. What reshapes and transposes between two layers do is
found by moving numbers (`moves.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.fx import Node

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseLinear, DenseMlp, DenseNorm, DensePart
from mysglang.srt.models.transformers_backend.angles import Angles
from mysglang.srt.models.transformers_backend.moves import (
    Way,
    has_whole_heads,
    keeps_heads,
    keeps_rows,
    numbered,
    way_to,
)
from mysglang.srt.models.transformers_backend.traced import Trace, alike

ROWS = (2, 3, 4, 7)
"""Numbers of rows for which values are moved in the graph of several rows. One row has a graph of its own."""

_aten, _ours = torch.ops.aten, torch.ops.mysglang_compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The layers of ours in one layer of the model, by number."""

    input_norm: int
    qkv: tuple[int, int, int]
    norms_of_heads: tuple[int, ...]
    """Norms of queries and of keys, or empty."""
    o: int
    post_norm: int
    mlp: int

    def numbers(self) -> Iterator[int]:
        yield from (self.input_norm, *self.qkv, *self.norms_of_heads, self.o, self.post_norm, self.mlp)


@dataclass(frozen=True, slots=True)
class Chain:
    """All that was read from a graph."""

    table: int
    """Index of the table of embeddings among the module's parameters and buffers."""
    layers: tuple[Links, ...]
    norm: int
    """Number of the last norm."""


class Reading:
    """Reads one graph. Every question raises CannotDescribe where the graph has another form."""

    def __init__(self, trace: Trace, parts: Sequence[DensePart], specs: Sequence[AttentionSpec]) -> None:
        """`parts`: what our layers compute, by number; `specs`: those of the attention calls, in order."""
        self.trace = trace
        self.angles: list[Angles] = []
        """Cosines and sines by which layers turn, from the last layer to the first, once `chain` has read them."""
        nodes = trace.graph.graph
        self.inputs = list(nodes.find_nodes(op="placeholder"))
        (output,) = nodes.find_nodes(op="output")
        ((self.result,),) = cast(tuple[tuple[Node]], output.args)
        self._parts = parts
        self._specs = specs
        self._rows = ROWS if trace.rows else (1,)
        for node in nodes.nodes:
            # The edges of a graph do not show what is written in place.
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                raise CannotDescribe(f"its layers write in place ({_name(node)})")
        if not all(trace.holds(rows) for rows in self._rows):
            raise CannotDescribe("it computes some numbers of rows in another way than others")

    def chain(self) -> Chain:
        """Returns the chain from the embeddings to the result."""
        norm, stream = self.layer(self.result, DenseNorm, "its result")
        layers: list[Links] = []
        while stream.target is not _aten.embedding.default:
            links, stream = self._layer_before(stream, len(self._specs) - len(layers) - 1)
            layers.insert(0, links)
        if len(layers) != len(self._specs):
            raise CannotDescribe(f"it attends {len(self._specs)} times in {len(layers)} layers")
        used = [norm, *(number for links in layers for number in links.numbers())]
        if len(set(used)) < len(used):
            raise CannotDescribe("some of its layers share weights")
        return Chain(self._table(stream), tuple(layers), norm)

    def layer(self, node: Node, kind: type[DensePart], what: str) -> tuple[int, Node]:
        """Returns the number of our layer, of this kind, whose result `node` has, and what computes the layer's
        input.
        """
        number, x = self._layer_of(self._source(node, what), kind, what)
        return number, self._source(x, f"the input of what {what} is made by")

    def _source(self, node: Node, what: str) -> Node:
        """Returns the computation whose rows `node` has, in the same order."""
        way = way_to(node)
        self._require(way, keeps_rows, f"{what} is moved between two layers")
        return way.source

    def _layer_of(self, node: Node, kind: type[DensePart], what: str) -> tuple[int, Node]:
        """Returns the number of our layer that `node` is, and its input."""
        if not self._is(node, kind):
            raise CannotDescribe(f"{what} is made by {self._said(node)}, not by {_KINDS[kind]}")
        x, others, number, _ = cast(tuple[Node, list[Node], int, object], node.args)
        if others:
            raise CannotDescribe(f"{what} is made of several tensors")
        return number, x

    def _is(self, node: Node, kind: type[DensePart]) -> bool:
        """True if `node` is our layer of this kind."""
        return node.target is _ours.layer.default and isinstance(self._parts[cast(int, node.args[2])], kind)

    def _table(self, node: Node) -> int:
        table, ids, *_ = node.args
        tables = self.inputs[2:]
        if table not in tables or self._source(cast(Node, ids), "what embeddings are of") is not self.inputs[0]:
            raise CannotDescribe("its embeddings are no rows of a table, by the ids of tokens")
        return tables.index(cast(Node, table))

    def _layer_before(self, node: Node, index: int) -> tuple[Links, Node]:
        """Returns the layer whose result `node` is, and its input. `index`: that of its attention call."""
        middle, mlp = self._sum(node, DenseMlp)
        mlp_number, normed = self._layer_of(mlp, DenseMlp, "what is added to its residual stream")
        post_norm = self._norm_of(normed, middle, "the input of an MLP")
        stream, o = self._sum(middle, DenseLinear)
        o_number, attended = self._layer_of(o, DenseLinear, "what is added to its residual stream")
        if index < 0:
            raise CannotDescribe(f"it has more layers than calls of attention, which are {len(self._specs)}")
        normed, qkv, norms = self._attention(attended, self._specs[index])
        input_norm = self._norm_of(normed, stream, "the input of attention")
        links = Links(
            input_norm=input_norm, qkv=qkv, norms_of_heads=norms, o=o_number, post_norm=post_norm, mlp=mlp_number
        )
        return links, stream

    def _sum(self, node: Node, kind: type[DensePart]) -> tuple[Node, Node]:
        """Returns the two computations of which `node` is the sum: the residual stream, and a layer of this kind."""
        if node.target is not _aten.add.Tensor or not all(isinstance(x, Node) for x in node.args):
            raise CannotDescribe(f"its residual stream is made by {_name(node)}")
        if node.kwargs:
            raise CannotDescribe(f"its residual stream is made by {_name(node)} with factors")
        one, other = cast(tuple[Node, Node], node.args)
        if not alike(one, node) or not alike(other, node):
            raise CannotDescribe("its residual stream is a sum of tensors with different shapes or dtypes")
        parts = [self._source(each, "a part of its residual stream") for each in (one, other)]
        own = [part for part in parts if self._is(part, kind)]
        if len(own) != 1:
            added = [part for part in parts if part.target not in (_aten.add.Tensor, _aten.embedding.default)] or parts
            what = " and by ".join(map(self._said, added))
            raise CannotDescribe(f"what is added to its residual stream is made by {what}, not by {_KINDS[kind]}")
        (layer,) = own
        return next(part for part in parts if part is not layer), layer

    def _norm_of(self, node: Node, stream: Node, what: str) -> int:
        """Returns the number of the norm that makes `node` of the residual stream."""
        number, normed = self.layer(node, DenseNorm, what)
        if normed is not stream:
            raise CannotDescribe(f"{what} is the norm of another tensor than the residual stream that it is added to")
        return number

    def _attention(self, attended: Node, spec: AttentionSpec) -> tuple[Node, tuple[int, int, int], tuple[int, ...]]:
        """Returns the common input of queries, keys and values of the call of attention whose result `attended` has,
        the numbers of their projections, and those of the norms of heads.
        """
        way = way_to(attended)
        if way.source.target is not _ours.attend.default:
            raise CannotDescribe(f"the input of a projection is made by {self._said(way.source)}, not by attention")
        self._require(
            way,
            lambda found, heads: found.shape[-1] == spec.num_heads * spec.head_dim and _equal_in_order(found, heads),
            "what heads give is moved before the projection",
        )
        q, k, v, number = cast(tuple[Node, Node, Node, int], way.source.args)
        if number != spec.layer_id:
            raise CannotDescribe("its layers do not attend in the order of the residual stream")
        turn, other = self._turned(q, 0), self._turned(k, 1)
        if turn is not other:
            raise CannotDescribe("its queries and keys are turned apart")
        turned_q, turned_k, *angles = cast(tuple[Node, Node, Node, Node], turn.args)
        self.angles.append((angles[0], angles[1]))
        found = [
            self._heads(turned_q, spec.num_heads, spec.head_dim, "queries"),
            self._heads(turned_k, spec.num_kv_heads, spec.head_dim, "keys"),
            self._heads(v, spec.num_kv_heads, spec.head_dim, "values"),
        ]
        (q_number, q_norm, x), (k_number, k_norm, of_keys), (v_number, v_norm, of_values) = found
        if v_norm is not None:
            raise CannotDescribe("it norms values")
        if (q_norm is None) is not (k_norm is None):
            raise CannotDescribe("it norms either queries or keys, but not both")
        sources = {self._source(each, "the input of attention") for each in (x, of_keys, of_values)}
        if len(sources) > 1:
            raise CannotDescribe("its queries, keys and values are made of different tensors")
        norms = tuple(norm for norm in (q_norm, k_norm) if norm is not None)
        return x, (q_number, k_number, v_number), norms

    def _turned(self, node: Node, place: int) -> Node:
        """Returns the rotation whose queries (`place` 0) or keys (1) `node` has, unmoved."""
        way = way_to(node)
        source = way.source
        if self._is(source, DenseLinear):
            raise CannotDescribe("it has layers without rotary positions of whole heads")
        turn, found = source.args[:2] if source.target is operator.getitem else (source, None)
        if not isinstance(turn, Node) or turn.target is not _ours.turn.default or found != place:
            raise CannotDescribe(f"{('its queries', 'its keys')[place]} in attention are made by {self._said(source)}")
        self._require(way, _same, "what was turned is moved before attention")
        return turn

    def _heads(self, node: Node, heads: int, dim: int, what: str) -> tuple[int, int | None, Node]:
        """Returns the number of the projection whose values `node` has, [1, heads, T, dim], that of the norm of each
        head that is between, or None, and the projection's input.
        """
        way, norm, before = way_to(node), None, None
        if self._is(way.source, DenseNorm):
            norm, x = self._layer_of(way.source, DenseNorm, what)
            weight = cast(DenseNorm, self._parts[norm]).weight
            if len(weight) != dim:
                raise CannotDescribe(f"its norm of {what} has {len(weight)} weights, and a head has {dim} dimensions")
            before = way_to(x)
        first = way if before is None else before
        number, x = self._layer_of(first.source, DenseLinear, f"the source of {what}")
        for rows in self._rows:
            projected = numbered(first.source, self.trace, rows)
            found = self._moved(first, projected, rows)
            if before is not None:
                if not has_whole_heads(found, dim):
                    raise CannotDescribe(f"its norm of {what} is not one of each head")
                found = self._moved(way, found, rows)
            if not keeps_heads(found, projected, heads, dim):
                raise CannotDescribe(f"its {what} are no heads of {dim} dimensions, one after another")
        return number, norm, x

    def _require(self, way: Way, keeps: Callable[[Tensor, Tensor], bool], otherwise: str) -> None:
        """Raises CannotDescribe unless values at the end of a way are, for any rows, what `keeps` says of them."""
        for rows in self._rows if way.steps else ():
            values = numbered(way.source, self.trace, rows)
            if not keeps(self._moved(way, values, rows), values):
                raise CannotDescribe(otherwise)

    def _moved(self, way: Way, values: Tensor, rows: int) -> Tensor:
        try:
            return way.moved(values, self.trace, rows)
        except (RuntimeError, ValueError) as error:
            raise CannotDescribe(
                f"values between its layers do not move by the number of rows alone ({error})"
            ) from error

    def _said(self, node: Node) -> str:
        if node.target is _ours.layer.default:
            return _KINDS[type(self._parts[cast(int, node.args[2])])]
        return _name(node)


_KINDS: Mapping[type[DensePart], str] = {
    DenseLinear: "a projection",
    DenseNorm: "an RMS norm",
    DenseMlp: "a gated MLP",
}
"""Kinds in messages."""


def _name(node: Node) -> str:
    """Returns what a node does, in messages."""
    if node.target is operator.getitem:
        return _name(cast(Node, node.args[0]))
    if node.op == "placeholder":
        return "an input of the step"
    op = node.target
    return str(op.overloadpacket if isinstance(op, torch._ops.OpOverload) else op)


def _same(found: Tensor, source: Tensor) -> bool:
    return torch.equal(found, source)


def _equal_in_order(found: Tensor, source: Tensor) -> bool:
    return torch.equal(found.flatten(), source.flatten())
