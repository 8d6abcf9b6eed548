"""Emptiness: whether surely nothing has a shape or satisfies a node. What is not sure counts as satisfiable."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.exactness import Exactness
from mysglang.srt.constrained.json_schema.numbers import Bounds, numbers
from mysglang.srt.constrained.json_schema.regular import ANYTHING
from mysglang.srt.constrained.json_schema.shapes import NEVER, Array, Node, Number, Object, OneOf, Shape, Text

MAX_LOOK = 4
"""Levels of a schema that are searched for a value."""


class NotKnownYetError(GrammarError):
    """Raised if a place is looked up while it is being worked out."""


class Emptiness:
    """Decides, for the nodes of one document, whether any value satisfies them."""

    def __init__(
        self,
        nodes: Mapping[Node, tuple[Shape, ...]],
        shapes: Callable[[Node], tuple[Shape, ...]],
        exactness: Exactness,
    ) -> None:
        """`nodes`: the nodes whose shapes are known already. `shapes` returns the shapes of any node, or raises
        NotKnownYetError.
        """
        self._nodes = nodes
        self._shapes = shapes
        self._exactness = exactness
        self._known: dict[tuple[Node, int], bool] = {}

    def of_node(self, node: Node, depth: int = MAX_LOOK) -> bool:
        """True if certainly no value satisfies `node`; nested values are examined to `depth`."""
        if (node not in self._nodes and depth <= 0) or not self._exactness.of_node(node):
            return False
        # Known nodes are examined below `depth`, too. These levels have one key, so that a cycle of required
        # properties, as in a linked list, comes back to a key whose examination is under way.
        depth = max(depth, 0)
        key = node, depth
        if key not in self._known:
            # A node whose examination is under way counts as having values.
            self._known[key] = False
            try:
                self._known[key] = all(self.has_no_value(shape, depth) for shape in self._shapes(node))
            except NotKnownYetError:
                del self._known[key]
                return False
        return self._known[key]

    def has_no_value(self, shape: Shape, depth: int = MAX_LOOK) -> bool:
        """True if certainly no value has `shape`."""
        match shape:
            case OneOf():
                return not shape.values
            case Number():
                bounds = shape.bounds
                if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high:
                    return True
                return bounds not in (Bounds(), Bounds(integer=True)) and is_empty(numbers(bounds))
            case Text():
                if shape.most is not None and shape.most < shape.least:
                    return True
                return shape.language != ANYTHING and is_empty(shape.of_length)
            case Array():
                if shape.most is not None and shape.most < shape.least:
                    return True
                looked = range(min(shape.least, len(shape.prefix) + 1))
                return any(self.of_node(shape.item(index), depth - 1) for index in looked) or any(
                    wanted.least and self.of_node(wanted.node, depth - 1) for wanted in shape.contains
                )
        required = [named for named in shape.named if named.required]
        if shape.most is not None and max(len(required), shape.least) > shape.most:
            return True
        return any(self.of_node(named.node, depth - 1) for named in required)

    def plainly(self, shape: Shape) -> bool:
        """True if no value has `shape`, decided without looking into other nodes, which may not be known yet."""
        if isinstance(shape, Object):
            return any(named.required and named.node >= NEVER for named in shape.named)
        return not isinstance(shape, Array) and self.has_no_value(shape)
