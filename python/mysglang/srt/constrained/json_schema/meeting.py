"""The intersection of two shapes, and the test whether a value has a shape."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import TypeAlias

from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.document import Json
from mysglang.srt.constrained.json_schema.regular import ANYTHING, both, contains
from mysglang.srt.constrained.json_schema.shapes import (
    NEVER,
    Array,
    Named,
    Node,
    Number,
    Object,
    OneOf,
    Others,
    Shape,
    Text,
    Value,
    contrary_of,
    value_key,
)

Accepts: TypeAlias = Callable[[Node, Json], bool]
"""Function that returns True if a node accepts a value."""


def meet(a: Shape, b: Shape, accepts: Accepts) -> Shape | None:
    """Returns the values that have both shapes; None if there are none, as far as can be seen without looking
    inside.
    """
    if isinstance(b, OneOf) and not isinstance(a, OneOf):
        a, b = b, a
    if isinstance(a, OneOf) and isinstance(b, OneOf):
        known = frozenset(b.values)
        values = tuple(value for value in a.values if value in known)
        return OneOf(values) if values else None
    if isinstance(a, OneOf):
        values = tuple(value for value in a.values if holds(b, value, accepts))
        return OneOf(values) if values else None
    if type(a) is not type(b):
        return None
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(a.bounds & b.bounds)
    if isinstance(a, Text) and isinstance(b, Text):
        most = _least_of(a.most, b.most)
        return Text(max(a.least, b.least), most, both(a.language, b.language))
    if isinstance(a, Array) and isinstance(b, Array):
        return _arrays(a, b)
    assert isinstance(a, Object) and isinstance(b, Object)
    return _objects(a, b)


def _least_of(a: int | None, b: int | None) -> int | None:
    return min((value for value in (a, b) if value is not None), default=None)


def _arrays(a: Array, b: Array) -> Array:
    count = max(len(a.prefix), len(b.prefix))
    return Array(
        prefix=tuple(a.item(index) | b.item(index) for index in range(count)),
        rest=a.rest | b.rest,
        least=max(a.least, b.least),
        most=_least_of(a.most, b.most),
        contains=a.contains | b.contains,
        unique=a.unique or b.unique,
        evaluated=max(a.evaluated, b.evaluated),
    )


def _objects(a: Object, b: Object) -> Object:
    in_a, in_b = ({named.name: named for named in one.named} for one in (a, b))
    named = []
    for name in {**in_a, **in_b}:
        one, other = in_a.get(name) or unnamed(a, name), in_b.get(name) or unnamed(b, name)
        named.append(
            Named(
                name,
                one.node | other.node,
                one.required or other.required,
                one.evaluated or other.evaluated,
                one.declared or other.declared,
            )
        )
    if a.others == b.others:
        others = a.others
    else:
        found = [
            Others(both(x.keys, y.keys), x.node | y.node, x.evaluated or y.evaluated, x.implicit and y.implicit)
            for x, y in product(a.others, b.others)
        ]
        others = tuple(one for one in found if one.keys == ANYTHING or not is_empty(one.keys))
    return Object(tuple(named), others, max(a.least, b.least), _least_of(a.most, b.most), a.some | b.some)


def unnamed(shape: Object, name: str) -> Named:
    """Returns the constraints of `shape` on a property that it does not name."""
    for other in shape.others:
        if contains(other.keys, name):
            return Named(name, other.node, evaluated=other.evaluated)
    return Named(name, NEVER)


def holds(shape: Shape, value: Value, accepts: Accepts) -> bool:
    """True if `value` has `shape`."""
    raw = value.raw
    match shape:
        case OneOf():
            return value in shape.values
        case Number():
            return isinstance(raw, int | Decimal) and not isinstance(raw, bool) and shape.bounds.holds(Decimal(raw))
        case Text():
            if not isinstance(raw, str) or len(raw) < shape.least or len(raw) > (shape.most or len(raw)):
                return False
            return (shape.most != 0 or not raw) and contains(shape.language, raw)
        case Array():
            return isinstance(raw, list) and _array_holds(shape, raw, accepts)
    return isinstance(raw, dict) and _object_holds(shape, raw, accepts)


def _array_holds(shape: Array, items: list[Json], accepts: Accepts) -> bool:
    if len(items) < shape.least or (shape.most is not None and len(items) > shape.most):
        return False
    if shape.unique and len({value_key(item) for item in items}) < len(items):
        return False
    if not all(accepts(shape.item(index), item) for index, item in enumerate(items)):
        return False
    for wanted in shape.contains:
        if sum(accepts(wanted.node, item) for item in items) < wanted.least:
            return False
        # A node may take more than is known of it, so that only what its contrary takes does not count.
        if wanted.most is not None:
            contrary = contrary_of(wanted.node)
            if sum(not accepts(contrary, item) for item in items) > wanted.most:
                return False
    return True


def _object_holds(shape: Object, properties: dict[str, Json], accepts: Accepts) -> bool:
    if len(properties) < shape.least or (shape.most is not None and len(properties) > shape.most):
        return False
    named = {one.name: one for one in shape.named}
    if any(one.required and name not in properties for name, one in named.items()):
        return False
    for name, value in properties.items():
        if not accepts((named.get(name) or unnamed(shape, name)).node, value):
            return False
    return all(
        any(contains(keys, name) and accepts(node, value) for name, value in properties.items())
        for keys, node in shape.some
    )
