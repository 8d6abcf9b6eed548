"""Grammar: the rules for the JSON texts that satisfy a schema, independent of any grammar library.

Properties come in the order in which the schema names them, and those that it does not name come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.algebra import Algebra
from mysglang.srt.constrained.json_schema.document import Document
from mysglang.srt.constrained.json_schema.items import items_of
from mysglang.srt.constrained.json_schema.numbers import numbers
from mysglang.srt.constrained.json_schema.properties import properties_of, with_witnesses
from mysglang.srt.constrained.json_schema.regular import NONE, Expr, alt
from mysglang.srt.constrained.json_schema.rules import (
    MAX_RULES,
    ROOT,
    Rules,
    pruned,
    ref,
    word,
)
from mysglang.srt.constrained.json_schema.shapes import (
    NEVER,
    Array,
    Node,
    Number,
    Object,
    OneOf,
    Shape,
    Text,
    contrary_of,
)
from mysglang.srt.constrained.json_schema.syntax import JSON_SYNTAX, Syntax

FEW = 16
"""Largest number of values that are written out at each place of use."""

UNNAMED = "two properties that 'minProperties' requires and the schema does not name"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name; the first is what an answer is."""

    rules: dict[str, Expr]


def grammar_of(schema: str, syntax: Syntax = JSON_SYNTAX) -> Grammar:
    """Returns the grammar of a schema's text, for values that are written in this syntax.

    Raises GrammarError, which names the keyword and its place, if the schema cannot be held to, or if nothing satisfies
    it.
    """
    try:
        return _Maker(Document(schema), syntax).grammar()
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None


class _Maker:
    """Makes the rules of one document."""

    def __init__(self, document: Document, syntax: Syntax) -> None:
        self._syntax = syntax
        self._algebra = Algebra(document)
        self._root: Node = frozenset([(True, document.root)])
        self._shapes: dict[Node, tuple[Shape, ...]] = {}
        self._names: dict[Node, str] = {}
        self._rules = Rules()
        self._shared: dict[Shape, Expr] = {}
        """References to the rules of shapes that several nodes have."""

    def grammar(self) -> Grammar:
        """Returns all rules, without those that can never end."""
        self._reach()
        self._keep_productive()
        if self._root not in self._shapes:
            raise self._no_value()
        # Nodes that are satisfied in the same ways, as a place and a $ref to it are, have one rule.
        alike: dict[tuple[Shape, ...], str] = {}
        self._names = {node: alike.setdefault(shapes, f"value{len(alike)}") for node, shapes in self._shapes.items()}
        rules = {ROOT: ref(self._names[self._root])}
        self._share(alike)
        for shapes, name in alike.items():
            rules[name] = alt(*map(self._written, shapes))
        if (outer := self._syntax.outer) is not None:
            objects = [shape for shape in self._shapes[self._root] if isinstance(shape, Object)]
            rules[ROOT] = alt(*(self._properties(shape, outer) for shape in objects))
        kept = pruned(rules | self._rules.made)
        if not kept:
            raise self._no_value()
        return Grammar(kept)

    def _no_value(self) -> GrammarError:
        dropped = ", ".join([*self._algebra.dropped][:3])
        reason = f" that can be written, without what is not supported: {dropped}" if dropped else ""
        return GrammarError(f"no value satisfies the schema{reason}")

    def _share(self, alike: Iterable[tuple[Shape, ...]]) -> None:
        """Makes a rule for every large shape that several nodes have, as happens with a `$ref` in an `anyOf`.

        Written out in each of them, nested choices would make the grammar grow by a power of their depth.
        """
        uses = Counter(shape for shapes in alike for shape in shapes if _is_large(shape))
        self._shared = {shape: self._rules.reserve() for shape, count in uses.items() if count > 1}
        for shape, reference in self._shared.items():
            self._rules.put(reference, self._own(shape))

    def _reach(self) -> None:
        """Works out the shapes of all nodes that values may contain."""
        todo = [self._root]
        for node in todo:
            if node in self._shapes:
                continue
            if len(self._shapes) >= MAX_RULES:
                raise GrammarError(f"its grammar has more than {MAX_RULES} rules")
            self._shapes[node] = self._chosen(node)
            for shape in self._shapes[node]:
                todo.extend(_inside(shape))

    def _chosen(self, node: Node) -> tuple[Shape, ...]:
        """Returns the shapes of `node` that are written to the grammar."""
        found: dict[Shape, None] = {}
        for shape in self._algebra.shapes(node):
            if isinstance(shape, Object):
                closed = _closed(shape)
                found.update(dict.fromkeys(with_witnesses(closed, self._algebra)))
                if closed.others and closed.least > len(closed.named) + 1:
                    self._algebra.dropped[UNNAMED] = None
            elif not self._algebra.empty.has_no_value(shape, 0):
                found[shape] = None
        return tuple(found)

    def _keep_productive(self) -> None:
        """Leave out nodes and shapes that no finite value has."""
        productive: set[Node] = set()
        grown = True
        while grown:
            grown = False
            for node, shapes in self._shapes.items():
                if node not in productive and any(_ends(shape, productive) for shape in shapes):
                    productive.add(node)
                    grown = True
        kept = {
            node: tuple(shape for shape in shapes if _ends(shape, productive))
            for node, shapes in self._shapes.items()
            if node in productive
        }
        self._shapes = kept

    def value(self, node: Node) -> Expr:
        """Returns the rule of a node; NONE if nothing satisfies it."""
        return ref(self._names[node]) if node in self._names else NONE

    def constants(self, node: Node) -> list[Expr] | None:
        """Returns the values of a node, if there are only so many; None otherwise."""
        shapes = self._shapes.get(node, ())
        if not all(isinstance(shape, OneOf) for shape in shapes):
            return None
        values = dict.fromkeys(value for shape in shapes if isinstance(shape, OneOf) for value in shape.values)
        return [self._syntax.constant(value.raw) for value in values]

    def _written(self, shape: Shape) -> Expr:
        return self._shared.get(shape) or self._own(shape)

    def _own(self, shape: Shape) -> Expr:
        match shape:
            case OneOf():
                return self._syntax.constants([value.raw for value in shape.values])
            case Number():
                return word(numbers(shape.bounds))
            case Text():
                return self._syntax.string(shape.of_length)
            case Array():
                inside = items_of(shape, self, self._rules, self._syntax)
                return self._syntax.around("[", inside, "]")
        return self._syntax.around("{", self._properties(shape, self._syntax), "}")

    def _properties(self, shape: Object, syntax: Syntax) -> Expr:
        return properties_of(shape, self, self._rules, syntax)


def _is_large(shape: Shape) -> bool:
    """True if the shape is worth a rule of its own."""
    return isinstance(shape, Array | Object) or (isinstance(shape, OneOf) and len(shape.values) > FEW)


def _closed(shape: Object) -> Object:
    """Returns an object without other properties if it declares its properties and the schema says nothing about
    others.
    """
    if not any(named.declared for named in shape.named):
        return shape
    spoken = tuple(one for one in shape.others if not one.implicit)
    count = sum(named.node != NEVER for named in shape.named)
    return replace(shape, others=spoken) if spoken or count >= shape.least else shape


def _inside(shape: Shape) -> Iterable[Node]:
    if isinstance(shape, Array):
        yield from shape.prefix
        yield shape.rest
        for wanted in shape.contains:
            for index in range(len(shape.prefix) + 1):
                yield shape.item(index) | wanted.node
                if wanted.most is not None:
                    yield shape.item(index) | contrary_of(wanted.node)
    elif isinstance(shape, Object):
        yield from (named.node for named in shape.named)
        yield from (other.node for other in shape.others)


def _ends(shape: Shape, productive: set[Node]) -> bool:
    """True if some value of `shape` is known to be finite."""
    if isinstance(shape, Array):
        items = (shape.item(index) for index in range(min(shape.least, len(shape.prefix) + 1)))
        return all(item in productive for item in items)
    if isinstance(shape, Object):
        return all(named.node in productive for named in shape.named if named.required)
    return True
