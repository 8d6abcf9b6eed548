"""OfferedTools: the functions that a request offers, as far as reading calls must know them.

Which names there are, and which types a parameter is declared to have: formats without quotes need that to tell "5"
from 5. Schemas are the client's and may say anything; what is not understood is not declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from mysglang.srt.utils.schema_words import pointer_steps

MAX_ALTERNATIVES = 32
"""Limit for a parameter's anyOf, oneOf and allOf together. A longer list is not read further."""
MAX_REFERENCES = 8
"""Limit for references to references."""


class Declared:
    """The types that a schema declares for one value."""

    def __init__(self, schema: object, root: object) -> None:
        """root: the whole schema, to which references are relative."""
        self._schema = _resolved(schema, root)
        self._root = root

    @property
    def types(self) -> frozenset[str]:
        """JSON types that the value may have; empty if nothing is declared."""
        return frozenset(_types(self._schema, self._root))

    def inside(self, key: str) -> Declared:
        """Returns the declaration of the value under this key, or of an element if the value is a list."""
        if "array" in self.types:
            return Declared(_member(self._schema, "items"), self._root)
        properties = _properties(self._schema)
        inner = properties[key] if key in properties else _member(self._schema, "additionalProperties")
        return Declared(inner, self._root)


class OfferedTools:
    """The tools of a request, made from OpenAI's form, already checked: {"type": "function", "function": {"name",
    "parameters"}}.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._schemas = {str(function["name"]): function.get("parameters") for function in functions}
        self._parameters = {name: _properties(schema) for name, schema in self._schemas.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def parameter_names(self, function: str) -> list[str]:
        """Returns the parameters of a function in the order in which they were declared."""
        return list(self._parameters[function])

    def declared(self, function: str) -> Declared:
        """Returns the declaration of all arguments of a function together."""
        return Declared(self._schemas[function], self._schemas[function])

    def types(self, function: str, parameter: str) -> frozenset[str]:
        """Returns the JSON types that the parameter may have; empty if nothing is declared."""
        return Declared(self._parameters[function].get(parameter), self._schemas[function]).types


def local_target(root: object, reference: str) -> object:
    """Returns the schema to which a reference such as `#/$defs/Place` points within `root`; None if there is none."""
    if not reference.startswith("#"):
        return None
    target = root
    for step in pointer_steps(unquote(reference[1:])):
        target = _member(target, step)
    return target


def _resolved(schema: object, root: object) -> object:
    """Returns the schema to which `schema` refers, or itself if it does not refer to another."""
    for _ in range(MAX_REFERENCES):
        match schema:
            case {"$ref": str(reference)}:
                schema = local_target(root, reference)
            case _:
                break
    return schema


def _properties(schema: object) -> Mapping[str, object]:
    match schema:
        case {"properties": dict() as properties}:
            return properties
    return {}


def _member(schema: object, name: str) -> object:
    return schema.get(name) if isinstance(schema, dict) else None


def _types(schema: object, root: object) -> Iterable[str]:
    match schema:
        case {"type": str(name)}:
            yield name
        case {"type": list(names)}:
            yield from (name for name in names if isinstance(name, str))
        case {"anyOf": list(schemas)} | {"oneOf": list(schemas)} | {"allOf": list(schemas)}:
            for alternative in (_resolved(one, root) for one in schemas[:MAX_ALTERNATIVES]):
                if isinstance(alternative, dict) and ("type" in alternative or "enum" in alternative):
                    yield from _types({key: alternative[key] for key in ("type", "enum") if key in alternative}, root)
        case {"enum": list(values)} if values and all(isinstance(value, str) for value in values):
            yield "string"
