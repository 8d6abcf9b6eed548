"""Bounds for lists and objects in a request body. A check ends at the first error.

Pydantic makes an error of about a kilobyte for each wrong item, unless it is told to stop. The bounds are put into the
schema of every model, so that a field that is added later has them as well. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from pydantic_core import CoreSchema

from mysglang.srt.errors import InvalidRequest

MAX_ITEMS = 1 << 16
"""Items of a list, or keys of an object. Longest known use: a batch with thousands of prompts."""

MAX_NUMBERS = 1 << 20
"""Numbers of a list, such as token ids."""

MAX_FIELDS = 512
"""Largest number of keys of an object whose keys are fields. The largest body has about a hundred fields."""

MAX_JOINED = 1 << 25
"""Largest number of characters, or token ids, that a request may become when one text is joined with each of many."""

_COLLECTIONS = frozenset({"list", "dict", "set", "frozenset", "tuple"})
_NUMBERS = frozenset({"int", "float"})
_NO_SCHEMAS = frozenset({"metadata", "default", "expected", "serialization"})
"""Keys of a schema under which there are values, and no schemas."""


def bound(schema: CoreSchema) -> CoreSchema:
    """Returns `schema` with a maximum length, and an early end of validation, for each list and object in it. A length
    in the field's own annotation stays. The schema is changed in place.
    """
    _bound(schema)
    return schema


def check_joined(field: str, text: Sized, count: int) -> None:
    """Raises InvalidRequest if `text`, joined with each of `count` others, would exceed the limit."""
    if len(text) * count > MAX_JOINED:
        message = f"{field}: its length ({len(text)}) times {count} texts is more than {MAX_JOINED}."
        raise InvalidRequest(message, param=field)


def _bound(node: Any) -> None:
    match node:
        case {"type": str(kind)}:
            if kind in _COLLECTIONS:
                _bound_collection(node)
            inner = [value for key, value in node.items() if key not in _NO_SCHEMAS]
        case dict():
            # Fields or choices by name; one of them may be called "type" or "metadata".
            inner = list(node.values())
        case list() | tuple():
            inner = list(node)
        case _:
            return
    for value in inner:
        _bound(value)


def _bound_collection(node: dict[str, Any]) -> None:
    node["fail_fast"] = True
    if node["type"] == "tuple":
        return
    items = node.get("values_schema" if node["type"] == "dict" else "items_schema", {})
    node.setdefault("max_length", MAX_NUMBERS if items.get("type") in _NUMBERS else MAX_ITEMS)
