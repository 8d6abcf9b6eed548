"""The part of a structural tag that holds a call's arguments to their schema, where a format writes each parameter
between marks, with its value as bare text.

A value that is a string may be any text, one of the texts that the schema lists, or a text of a known `format`. Other
values are JSON. What a schema says beyond that of a string, such as its length, is refused, because bare text is not
held to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from mysglang.srt.entrypoints.openai.tool_constraint import DEFINITIONS, literal, sequence
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.core_types import Markup
from mysglang.srt.function_call.tool_schema import local_target
from mysglang.srt.utils.schema_words import FORMATS, RESTRICTING

Form: TypeAlias = dict[str, Any]
"""A part of a structural tag."""

_NOT_HELD = RESTRICTING - {"type", "properties", "required", "additionalProperties"}
"""Keywords that the schema of all arguments cannot have."""
_NO_NAME = re.compile(r'[<>"\s]')
DEEPEST = 32
"""Limit for alternatives and references within one another."""
MOST_SCHEMAS = 4096
"""Limit for the schemas of parameters, their alternatives and what they refer to, of one function."""
MOST_DEFINITIONS = 1 << 20
"""Limit in bytes of JSON for definitions, which are repeated in each parameter that refers to them."""


def markup_arguments(function: str, schema: Mapping[str, Any], markup: Markup) -> Form:
    """Returns the arguments of a call as they are written between the function's head and the call's end. All
    parameters come in the schema's order, and no others do.

    Raises InvalidRequest for a schema that cannot be enforced in this form.
    """
    where = f"tools: function {function!r} is strict, and"
    if _NO_NAME.search(function):
        raise _refusal(where, "has a name that the format cannot write")
    for key in schema:
        if key in _NOT_HELD:
            raise _refusal(where, f"is restricted by {key!r}")
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    if unknown := sorted(required - properties.keys()):
        raise _refusal(where, f"requires {unknown[0]!r}, which is not among its properties")
    parts = [_line(markup)]
    definitions = _Definitions(schema)
    for name, declared in properties.items():
        part = _Parameter(f"{where} its parameter {name!r}", definitions, markup).form(name, declared)
        parts.append(part if name in required else {"type": "optional", "content": part})
    return sequence(parts)


class _Text(NamedTuple):
    """A value that is a string, as bare text."""

    form: Form | None
    """None: any text."""


class _Json(NamedTuple):
    """A value that is no string."""

    form: Form


class _Definitions:
    """Definitions to which the schemas of one function may refer, and how many more of them may be read."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        """root: the schema of all arguments, to which references are relative."""
        self.root = root
        self._own = {key: root[key] for key in DEFINITIONS if key in root}
        self._size = len(orjson.dumps(self._own))
        self._schemas = MOST_SCHEMAS
        self._room = MOST_DEFINITIONS

    def read(self) -> bool:
        """Counts a schema. Returns False if there are too many."""
        self._schemas -= 1
        return self._schemas >= 0

    def joined(self, schema: Form) -> Form | None:
        """Returns the schema together with what it may refer to; None if that is too much."""
        if b'"$ref"' not in orjson.dumps(schema):
            return schema
        self._room -= self._size
        return None if self._room < 0 else {**schema, **self._own}


class _Parameter:
    """The form of one parameter."""

    def __init__(self, where: str, definitions: _Definitions, markup: Markup) -> None:
        """where: the beginning of a refusal."""
        self._where = where
        self._definitions = definitions
        self._markup = markup

    def form(self, name: str, schema: object) -> Form:
        """Returns the parameter of this name and schema, with its marks and the line break behind it."""
        if not name or _NO_NAME.search(name):
            raise self._refused("has a name that the format cannot write")
        values = list(self._values(schema, 0))
        if not values:
            raise self._refused("may have no value")
        texts = [value.form for value in values if isinstance(value, _Text)]
        others = [value.form for value in values if isinstance(value, _Json)]
        markup, head = self._markup, f"{self._markup.before_name}{name}"
        same_head = markup.behind_name == markup.behind_name_of_other
        if None in texts and same_head:
            others = []  # the text of any other value is a text
        forms = [self._written(f"{head}{markup.behind_name}", self._texts(texts))] if texts else []
        if others:
            forms.append(self._written(f"{head}{markup.behind_name_of_other}", self._ended(others)))
        return sequence([_one_of(forms), _line(markup)])

    def _written(self, head: str, value: Form) -> Form:
        """Returns the form of a value with its end behind this head."""
        pieces = head.split("\n") if self._markup.loose_breaks else [head]
        parts = [literal(pieces[0])]
        for piece in pieces[1:]:
            parts += [_line(self._markup), literal(piece)]
        if self._markup.on_lines:
            parts.append(literal("\n"))
        return sequence([*parts, value])

    def _texts(self, texts: Sequence[Form | None]) -> Form:
        """Returns the form of a string's value and its end. None among `texts`: any text."""
        if None in texts:  # the last line break may be missing, or the text could end itself in its first line
            content = {"type": "any_text", "excludes": list(self._markup.never)}
            return {"type": "tag", "begin": "", "content": content, "end": self._markup.end}
        return self._ended([text for text in texts if text is not None])

    def _ended(self, values: Sequence[Form]) -> Form:
        end = f"\n{self._markup.end}" if self._markup.on_lines else self._markup.end
        return sequence([_one_of(values), literal(end)])

    def _values(self, schema: object, depth: int) -> Iterator[_Text | _Json]:
        """Yields what the value may be."""
        if depth > DEEPEST or not self._definitions.read():
            raise self._refused(f"comes with more than {MOST_SCHEMAS} schemas, or {DEEPEST} within one another")
        if schema is True:
            yield _Text(None)
            return
        if not isinstance(schema, dict):
            raise self._refused("may have no value")
        said = {key: inner for key, inner in schema.items() if key in RESTRICTING}
        match said:
            case {"$ref": str(reference), **rest} if not rest:
                yield from self._values(self._target(reference), depth + 1)
            case {"anyOf": list(inner), **rest} | {"oneOf": list(inner), **rest} if not rest:
                for one in inner:
                    yield from self._values(one, depth + 1)
            case {"allOf": [one], **rest} if not rest:
                yield from self._values(one, depth + 1)
            case {"const": value, **rest} if rest.keys() <= {"type"}:
                yield self._value(value)
            case {"enum": list(values), **rest} if rest.keys() <= {"type"}:
                yield from map(self._value, values)
            case {"type": list(names), **rest}:
                for name in names:
                    yield from self._values({**rest, "type": name}, depth + 1)
            case {"type": "string", "format": str(name), **rest} if not rest:
                # As in JSON, an unknown format is a note.
                yield _Text({"type": "regex", "pattern": FORMATS[name]} if name in FORMATS else None)
            case {"type": "string", **rest}:
                for key in rest:
                    raise self._refused(f"is restricted by {key!r}")
                yield _Text(None)
            case {"type": str()}:
                joined = self._definitions.joined(schema)
                if joined is None:
                    raise self._refused(f"repeats definitions beyond {MOST_DEFINITIONS} bytes")
                yield _Json({"type": "json_schema", "json_schema": joined})
            case _:
                for key in said:
                    raise self._refused(f"is restricted by {key!r} without a type")
                yield _Text(None)

    def _value(self, value: object) -> _Text | _Json:
        if not isinstance(value, str):
            return _Json({"type": "json_schema", "json_schema": {"enum": [value]}})
        if any(end in value for end in (self._markup.end, *self._markup.never)):
            raise self._refused("has a value that would end itself")
        return _Text(literal(value) if value else {"type": "regex", "pattern": ""})

    def _target(self, reference: str) -> object:
        target = local_target(self._definitions.root, reference)
        if target is None:
            raise self._refused(f"refers to {reference!r}, which is not in the schema")
        return target

    def _refused(self, why: str) -> InvalidRequest:
        return _refusal(self._where, why)


def _refusal(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{where} {why}. Calls in this model's format cannot be held to that.", param="tools")


def _line(markup: Markup) -> Form:
    return {"type": "regex", "pattern": r"\n?"} if markup.loose_breaks else literal("\n")


def _one_of(forms: Sequence[Form]) -> Form:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": list(forms)}
