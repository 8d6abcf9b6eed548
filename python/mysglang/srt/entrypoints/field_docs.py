"""Descriptions of every field for /openapi.json.

A field's description is its docstring, which is under it in its class. Fields that mean the same wherever they
occur, and tags that have no line of their own, are told in `field_texts.py`; what differs in a class, in
`place_texts.py`. The sources are read when the document is built, never at the server's start.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from pydantic import BaseModel

from mysglang.srt.entrypoints.field_texts import BY_FIELD
from mysglang.srt.entrypoints.place_texts import BY_PLACE


def add_descriptions(schemas: Mapping[str, Any], kinds: Iterable[type]) -> None:
    """Give every property of `schemas` its description. `kinds`: the classes of the schemas, or classes that name
    these in their fields. A property of which nothing is known stays as it is.
    """
    classes = {kind.__name__: kind for kind in _reachable(kinds)}
    for name, schema in schemas.items():
        kind = classes.get(name)
        near = {} if kind is None else _docstrings(kind) | _by_place(kind)
        for field, told in schema.get("properties", {}).items():
            if text := near.get(field) or BY_FIELD.get(field):
                required = field in schema.get("required", ())
                told["description"] = text.partition(" Default:")[0] if required else text


def all_subclasses(base: type) -> Iterator[type]:
    """Yields the classes that are derived from `base`, at any distance."""
    kinds: list[type] = base.__subclasses__()
    for kind in kinds:
        yield kind
        yield from all_subclasses(kind)


def _reachable(kinds: Iterable[type]) -> set[type]:
    """Returns the classes, and the classes that their fields name."""
    found: set[type] = set()
    waiting: list[Any] = list(kinds)
    while waiting:
        kind = waiting.pop()
        if not isinstance(kind, type) or not issubclass(kind, BaseModel | msgspec.Struct):
            waiting += get_args(kind)
        elif kind not in found:
            found.add(kind)
            waiting += get_type_hints(kind).values()
    return found


def _by_place(kind: type) -> dict[str, str]:
    """Returns field -> its text for this class, or for the nearest base class that has one."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        place = f"{base.__name__}."
        found |= {key.removeprefix(place): text for key, text in BY_PLACE.items() if key.startswith(place)}
    return found


def _docstrings(kind: type) -> dict[str, str]:
    """Maps each field of a class, inherited ones included, to its docstring. A field's trailing underscore is removed:
    it only keeps the name apart from a Python keyword or a pydantic method.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("mysglang."):
            found |= _docstrings_in(base.__module__).get(base.__name__, {})
    return found


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Returns the docstrings of fields by class and field: class of `module` -> its own fields -> their docstrings.
    Each source is parsed once, which takes milliseconds.
    """
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {item.name: _docstrings_of(item) for item in tree.body if isinstance(item, ast.ClassDef)}


def _docstrings_of(tree: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name.removesuffix("_")] = inspect.cleandoc(text).replace("\n", " ")
    return found
