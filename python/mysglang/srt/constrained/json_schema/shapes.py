"""Shapes: sets of JSON values of one type, as a grammar can say them. A schema is a list of them, any of which will do.

A shape speaks of the values inside it by nodes: sets of literals, all of which must hold. A literal is a place of the
document, or its negation. So the conjunction of two schemas is the union of two sets, and recursion ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from mysglang.srt.constrained.json_schema.document import Json, Place, refuse
from mysglang.srt.constrained.json_schema.numbers import Bounds
from mysglang.srt.constrained.json_schema.regular import ANY, ANYTHING, Expr, both, lengths, plain, rep

Literal: TypeAlias = tuple[bool, Place]
Node: TypeAlias = frozenset[Literal]

ANY_NUMBER = Bounds()
TRUE: Node = frozenset()
NOTHING = Place(False, "#")
NEVER: Node = frozenset([(True, NOTHING)])
ALL_ITEMS = 1 << 30
"""A count of items that stands for every item."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value. 1 and 1.0 are the same value, 1 and true are not."""

    raw: Json = field(compare=False)
    key: object

    @classmethod
    def of(cls, raw: Json) -> Value:
        return cls(raw, value_key(raw))


def value_key(raw: Json) -> object:
    """Returns a key that is equal for values that JSON schema calls equal."""
    match raw:
        case None | bool():
            return "constant", raw
        case int() | Decimal():
            return "number", Decimal(raw)
        case str():
            return "string", raw
        case list():
            return "array", tuple(map(value_key, raw))
    return "object", frozenset((name, value_key(value)) for name, value in raw.items())


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these values. Also stands for null, true and false."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers within bounds."""

    bounds: Bounds = ANY_NUMBER


@dataclass(frozen=True, slots=True)
class Text:
    """Strings of `least` to `most` characters that are in a language."""

    least: int = 0
    most: int | None = None
    language: Expr = ANYTHING

    @property
    def of_length(self) -> Expr:
        """The language of the strings, restricted to their lengths."""
        if self.least == 0 and self.most is None:
            return self.language
        if plain(self.language):
            low, high = lengths(self.language)
            if low >= self.least and (self.most is None or (high is not None and high <= self.most)):
                return self.language
            if self.language.kind == "rep" and self.language.parts[0].kind == "class":
                least, most = self.language.bounds
                tighter = min((value for value in (most, self.most) if value is not None), default=None)
                return rep(self.language.parts[0], max(least, self.least), tighter)
        return both(self.language, rep(ANY, self.least, self.most))


@dataclass(frozen=True, slots=True)
class Contains:
    """The constraint that `least` to `most` items satisfy `node`."""

    node: Node
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays: each item of `prefix` at its index, then any number of items that satisfy `rest`."""

    prefix: tuple[Node, ...] = ()
    rest: Node = TRUE
    least: int = 0
    most: int | None = None
    contains: frozenset[Contains] = frozenset()
    unique: Place | None = None
    """The place that forbids equal items; None if they are allowed."""
    evaluated: int = 0
    """Items that keywords spoke of, counted from the first."""

    def item(self, index: int) -> Node:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Named:
    """A property whose name a keyword mentions."""

    name: str
    node: Node
    required: bool = False
    evaluated: bool = False
    declared: bool = False
    """True if `properties` declares it."""


@dataclass(frozen=True, slots=True)
class Others:
    """Properties with names in a language, apart from those that are named."""

    keys: Expr = ANYTHING
    node: Node = TRUE
    evaluated: bool = False
    implicit: bool = True
    """True if no keyword mentions these properties or items."""


@dataclass(frozen=True, slots=True)
class Object:
    """Objects: named properties, and others. No name belongs to the languages of two others."""

    named: tuple[Named, ...] = ()
    others: tuple[Others, ...] = (Others(),)
    least: int = 0
    most: int | None = None
    some: frozenset[tuple[Expr, Node]] = frozenset()
    """Required properties: for each pair, one whose name is in the language and whose value fits the node."""


Shape: TypeAlias = OneOf | Number | Text | Array | Object
CONSTANTS = tuple(map(Value.of, (None, False, True)))


def contrary_of(node: Node) -> Node:
    """Returns the node of the values that a node of one literal does not accept. Raises GrammarError for any other
    node.
    """
    if node == TRUE:
        return NEVER
    if len(node) != 1:
        (_, place), *_ = node
        refuse("maxContains", place, "cannot be combined with another 'contains'")
    ((positive, place),) = node
    return frozenset([(not positive, place)])
