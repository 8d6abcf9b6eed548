"""Document: a JSON schema as it was sent, its places, and what `$ref` means in it.

A place is one schema in the document, named by its JSON pointer. Nothing is ever fetched: a `$ref` that leads out of
the document is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote, urljoin

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.utils.schema_words import pointer_step, pointer_steps

Json: TypeAlias = Any
"""A value of json.loads, with Decimal for every number that has a point or an exponent."""

MAX_EXPONENT = 400
MAX_PLACES = 200_000
OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
"""Drafts in which `$ref` makes its neighbours void."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One schema in a document. Two of them are equal only if they are the same object."""

    schema: Json
    pointer: str
    base: str = ""
    """The URI that a `$ref` counts from."""
    number: int = 0
    """Places are counted in the order in which they are first met."""


def refuse(keyword: str, place: Place, reason: str = "is not supported") -> NoReturn:
    """Raises a GrammarError that names a keyword, its place in the schema, and what is wrong with it."""
    raise GrammarError(f"{keyword!r} at {place.pointer or '#'} {reason}")


class Document:
    """The schemas in one document, by JSON pointer."""

    def __init__(self, text: str) -> None:
        """Raises GrammarError if `text` is not valid JSON."""
        try:
            schema = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_no_constant)
        except (ValueError, ArithmeticError) as error:
            raise GrammarError(f"it is not valid JSON: {error}") from None
        self._places: dict[tuple[int, str], Place] = {}
        self._contents: dict[object, int] = {}
        self._numbers: dict[int, int] = {}
        self._by_uri: dict[str, Place] = {}
        base = ""
        if isinstance(schema, dict):
            declared = schema.get("$schema")
            self._old = isinstance(declared, str) and any(draft in declared for draft in OLD_DRAFTS)
            base = self._base_of(schema, "")
        else:
            self._old = False
        self.root = self.place(schema, "#", base)
        self._by_uri[""] = self._by_uri[base] = self.root
        if any(mark in text for mark in ('$id"', '"id"', '$anchor"', '$dynamicAnchor"')):
            self._find_names(schema, "#", base)

    @property
    def ref_stands_alone(self) -> bool:
        """True if keywords beside a `$ref` are void, as in drafts up to 7."""
        return self._old

    def place(self, schema: Json, pointer: str, base: str) -> Place:
        """Returns the place of `schema`. Equal schemas whose `$ref` are relative to the same URI have the same place.

        So what a schema says many times over is worked out once, and becomes one rule.
        """
        if not isinstance(schema, dict | bool):
            raise GrammarError(f"a schema must be an object or a boolean, at {pointer}")
        key = self._number_of(schema), base
        if key not in self._places:
            if len(self._places) >= MAX_PLACES:
                raise GrammarError(f"it has more than {MAX_PLACES} places")
            self._places[key] = Place(schema, pointer, base, len(self._places))
        return self._places[key]

    def _number_of(self, value: Json) -> int:
        """Returns a number that equal values share; the order of their properties counts. The caller keeps `value`
        alive.
        """
        if not isinstance(value, dict | list):
            return self._contents.setdefault((type(value), value), len(self._contents))
        known = self._numbers.get(id(value))
        if known is None:
            content: tuple[object, ...]
            if isinstance(value, dict):
                content = ("object", *((name, self._number_of(part)) for name, part in value.items()))
            else:
                content = ("array", *map(self._number_of, value))
            known = self._numbers[id(value)] = self._contents.setdefault(content, len(self._contents))
        return known

    def below(self, place: Place, *steps: str | int) -> Place:
        """Returns the place that `steps`, keywords and indices, lead to from `place`."""
        schema = place.schema
        for step in steps:
            schema = schema[step]
        path = "".join(f"/{pointer_step(str(step))}" for step in steps)
        return self.place(schema, place.pointer + path, self._base_of(schema, place.base))

    def made(self, schema: Json, place: Place) -> Place:
        """Returns a place for a schema that stands for a part of the one at `place`. The caller keeps `schema`."""
        return self.place(schema, place.pointer, place.base)

    def referred(self, place: Place) -> Place:
        """Returns the target of the `$ref` of `place`. Raises GrammarError if it does not exist or is outside the
        document.
        """
        ref = place.schema["$ref"]
        if not isinstance(ref, str):
            refuse("$ref", place, "must be a string")
        resource, _, fragment = urljoin(place.base, ref).partition("#") if ref else (place.base, "", "")
        if ref.startswith("#"):
            resource, fragment = place.base, ref[1:]
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._by_uri.get(f"{resource}#{fragment}")
        else:
            found = self._by_uri.get(resource)
        if found is None:
            where = "leads to a name that is not in the schema" if ref.startswith("#") else "leads out of the schema"
            refuse("$ref", place, f"{where}: {ref[:80]!r}")
        for step in pointer_steps(fragment) if fragment.startswith("/") else ():
            found = self._step(found, step, place)
        if not isinstance(found.schema, dict | bool):
            refuse("$ref", place, f"leads to what is no schema: {ref[:80]!r}")
        return self.place(found.schema, found.pointer, found.base)

    def _step(self, found: Place, step: str, place: Place) -> Place:
        schema = found.schema
        try:
            below = schema[int(step)] if isinstance(schema, list) else schema[step]
        except (LookupError, ValueError, TypeError):
            ref = place.schema["$ref"]
            refuse("$ref", place, f"leads nowhere: {ref[:80]!r}")
        return Place(below, f"{found.pointer}/{pointer_step(step)}", self._base_of(below, found.base))

    def _base_of(self, schema: Json, base: str) -> str:
        if not isinstance(schema, dict):
            return base
        name = schema.get("$id", schema.get("id") if self._old else None)
        if not isinstance(name, str) or name.startswith("#") or ("$ref" in schema and self._old):
            return base
        return urljoin(base, name).partition("#")[0]

    def _find_names(self, schema: Json, pointer: str, base: str) -> None:
        """Enter every `$id` and `$anchor` into the table of what a `$ref` may name."""
        todo = [(schema, pointer, base)]
        while todo:
            value, at, uri = todo.pop()
            if isinstance(value, dict):
                inner = self._base_of(value, uri)
                if inner != uri:
                    self._by_uri.setdefault(inner, Place(value, at, inner))
                for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    name = value.get(keyword)
                    if isinstance(name, str) and (keyword.endswith("nchor") or name.startswith("#")):
                        self._by_uri.setdefault(f"{inner}#{name.lstrip('#')}", Place(value, at, inner))
                todo.extend((below, f"{at}/{pointer_step(step)}", inner) for step, below in _schemas_in(value))
            elif isinstance(value, list):
                todo.extend((below, f"{at}/{place}", uri) for place, below in enumerate(value))


def _schemas_in(schema: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """Yields the keywords whose values may contain schemas, with these values; not `const`, `enum` and the like."""
    for keyword, value in schema.items():
        if keyword not in ("const", "enum", "default", "examples"):
            yield keyword, value


def _number(text: str) -> int | Decimal:
    if len(text) > MAX_EXPONENT:
        raise ValueError(f"a number has more than {MAX_EXPONENT} digits")
    if text.lstrip("-").isdigit():
        return int(text)
    value = Decimal(text)
    if abs(value.adjusted()) > MAX_EXPONENT:
        raise ValueError(f"a number has an exponent above {MAX_EXPONENT}")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
