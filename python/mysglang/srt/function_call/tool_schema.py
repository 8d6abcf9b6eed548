"""OfferedTools: the functions that a request offers, as far as reading calls must know them.

Which names there are, and which types a parameter is declared to have: formats without quotes need that to tell "5"
from 5. Schemas are the client's and may say anything; what is not understood is not declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_ALTERNATIVES = 32
"""Limit for a parameter's anyOf, oneOf and allOf together. A longer list is not read further."""


class Declared:
    """The types that a schema declares for one value."""

    def __init__(self, schema: object) -> None:
        self._schema = schema

    @property
    def types(self) -> frozenset[str]:
        """JSON types that the value may have; empty if nothing is declared."""
        return frozenset(_types(self._schema))

    def inside(self, key: str) -> Declared:
        """Returns the declaration of the value under this key, or of an element if the value is a list."""
        if "array" in self.types:
            return Declared(_member(self._schema, "items"))
        properties = _properties(self._schema)
        return Declared(properties[key] if key in properties else _member(self._schema, "additionalProperties"))


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
        return Declared(self._schemas[function])

    def types(self, function: str, parameter: str) -> frozenset[str]:
        """Returns the JSON types that the parameter may have; empty if nothing is declared."""
        return frozenset(_types(self._parameters[function].get(parameter)))


def _properties(schema: object) -> Mapping[str, object]:
    match schema:
        case {"properties": dict() as properties}:
            return properties
    return {}


def _member(schema: object, name: str) -> object:
    return schema.get(name) if isinstance(schema, dict) else None


def _types(schema: object) -> Iterable[str]:
    match schema:
        case {"type": str(name)}:
            yield name
        case {"type": list(names)}:
            yield from (name for name in names if isinstance(name, str))
        case {"anyOf": list(schemas)} | {"oneOf": list(schemas)} | {"allOf": list(schemas)}:
            for alternative in schemas[:MAX_ALTERNATIVES]:
                if isinstance(alternative, dict) and isinstance(alternative.get("type"), str | list):
                    yield from _types(alternative)
        case {"enum": list(values)} if values and all(isinstance(value, str) for value in values):
            yield "string"
