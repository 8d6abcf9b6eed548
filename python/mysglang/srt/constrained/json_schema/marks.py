"""Marks: which properties and items keywords spoke of, for `unevaluatedProperties` and `unevaluatedItems`."""

from __future__ import annotations

from dataclasses import replace

from mysglang.srt.constrained.json_schema.shapes import ALL_ITEMS, Array, Node, Object, Others, Shape


def evaluated_object(shape: Object, node: Node) -> Object:
    """Returns `shape`, in which every property that no keyword has evaluated must also satisfy `node`."""
    named = (one if one.evaluated else replace(one, node=one.node | node, evaluated=True) for one in shape.named)
    others = (
        one if one.evaluated else Others(one.keys, one.node | node, evaluated=True, implicit=False)
        for one in shape.others
    )
    return replace(shape, named=tuple(named), others=tuple(others))


def evaluated_array(shape: Array, node: Node) -> Array:
    """Returns `shape`, in which every item that no keyword has evaluated must also satisfy `node`."""
    if shape.evaluated >= ALL_ITEMS:
        return shape
    items = (shape.item(index) for index in range(max(len(shape.prefix), shape.evaluated)))
    prefix = tuple(item if index < shape.evaluated else item | node for index, item in enumerate(items))
    return replace(shape, prefix=prefix, rest=shape.rest | node, evaluated=ALL_ITEMS)


def unmarked(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Returns the shapes without marks, as a negation needs them: it marks no property and no item. A tuple without
    marks stays the same object.
    """
    found = tuple(map(_without_marks, shapes))
    return shapes if found == shapes else found


def _without_marks(shape: Shape) -> Shape:
    if isinstance(shape, Array):
        return replace(shape, evaluated=0)
    if not isinstance(shape, Object):
        return shape
    named = tuple(replace(one, evaluated=False) for one in shape.named)
    return replace(shape, named=named, others=tuple(replace(one, evaluated=False) for one in shape.others))
