"""The parts of structural tags; and grammars, as text, for a JSON list of calls, which `JsonArrayDetector` reads, where
the model's own format cannot be written down. Knows no request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import CallStructure
from mysglang.srt.utils.schema_words import pointer_step

DEFINITIONS = ("$defs", "definitions")
"""Keys under which a schema has schemas that it refers to."""

Structured = Sequence[tuple[FunctionDefinition, Sequence[CallStructure]]]
"""Functions, each with the forms of its calls."""


def list_of_calls(functions: Sequence[FunctionDefinition], *, several: bool) -> str:
    """Returns a structural tag: a JSON list of calls, without a space that a model could lose itself in."""
    begins = [f'{{"name": {json_text(function.name)}, "parameters": ' for function in functions]
    schemas = [json_part(arguments_schema(function)) for function in functions]
    tags = [tag(begin, schema, "}") for begin, schema in zip(begins, schemas, strict=True)]
    return tag_text(sequence([literal("["), calls_between(tags, ", ", several=several), literal("]")]))


def list_schema(functions: Sequence[FunctionDefinition], *, several: bool) -> str:
    """Returns the JSON schema of such a list, for libraries that do not support structural tags of that kind."""
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": [_call(one) for one in functions]}}
    # Errors name a place in the schema, and this place names the function.
    schema["functions"] = {function.name: _own_schema(function) for function in functions}
    if not several:
        schema["maxItems"] = 1
    for kind in DEFINITIONS:
        if found := _definitions(functions, kind):
            schema[kind] = found
    return orjson.dumps(schema).decode()


def literal(text: str) -> dict[str, Any]:
    """Returns the part of a structural tag that is this text."""
    return {"type": "const_string", "value": text}


def sequence(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the part of a structural tag that has these parts one after another."""
    return {"type": "sequence", "elements": list(parts)}


def tag_text(form: dict[str, Any], *, special: bool = False) -> str:
    """Returns the structural tag of this form, which has each schema once. `special`: special tokens are text in it."""
    once = _Once()
    once.count(form)
    tag: dict[str, Any] = {"type": "structural_tag", "format": once.written(form)}
    if once.shared:
        tag["shared"] = once.shared
    if special:
        tag["special_tokens"] = True
    return orjson.dumps(tag).decode()


class _Once:
    """The JSON schemas of a structural tag, each of which is written once, however many forms a call has."""

    def __init__(self) -> None:
        self.shared: dict[str, dict[str, Any]] = {}
        """The schemas that occur several times, by name."""
        self._uses = Counter[bytes]()
        self._names: dict[bytes, str] = {}

    def count(self, part: Any) -> None:
        """Counts the schemas in a part."""
        for inner in _inside(part):
            if _is_schema(inner):
                self._uses[orjson.dumps(inner)] += 1
            else:
                self.count(inner)

    def written(self, part: Any) -> Any:
        """Returns the part with names in place of the schemas that occur several times."""
        if isinstance(part, list):
            return [self.written(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        if not _is_schema(part):
            return {key: self.written(inner) for key, inner in part.items()}
        text = orjson.dumps(part)
        if self._uses[text] < 2:
            return part
        name = self._names.setdefault(text, str(len(self._names)))
        self.shared[name] = part
        return {"type": "shared", "name": name}


def _is_schema(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "json_schema"


def _inside(part: Any) -> Iterable[Any]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else ()


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    """Returns the part of a structural tag that is `content` between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def json_part(schema: object, style: str = "json") -> dict[str, Any]:
    """Returns the part of a structural tag that is a value of this schema, as JSON or in another style."""
    part: dict[str, Any] = {"type": "json_schema", "json_schema": schema}
    return part if style == "json" else {**part, "style": style}


def calls_between(tags: Sequence[dict[str, Any]], separator: str, *, several: bool) -> dict[str, Any]:
    """Returns the part of a structural tag that is one of the tags, or `several` of them with text between them."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def arguments_schema(function: FunctionDefinition) -> dict[str, Any]:
    """Returns the schema of the arguments, which must be an object whatever the given schema allows."""
    return {"type": "object", **function.parameters}


def _own_schema(function: FunctionDefinition) -> dict[str, Any]:
    """Returns the schema of the arguments without what it refers to."""
    return {key: value for key, value in arguments_schema(function).items() if key not in DEFINITIONS}


def _call(function: FunctionDefinition) -> dict[str, Any]:
    step = quote(pointer_step(function.name))
    return {
        "type": "object",
        "properties": {"name": {"enum": [function.name]}, "parameters": {"$ref": f"#/functions/{step}"}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _definitions(functions: Sequence[FunctionDefinition], kind: str) -> dict[str, Any]:
    """Returns all definitions that the schemas refer to: a reference is relative to the root of the whole schema."""
    found: dict[str, Any] = {}
    for function in functions:
        own = function.parameters.get(kind)
        for name, schema in own.items() if isinstance(own, dict) else ():
            if found.setdefault(name, schema) != schema:
                message = f"tools: {kind}/{name} is defined differently by two tools."
                raise InvalidRequest(message, param="tools")
    return found
