"""Structural tags for answers that may call functions: free text, in which calls keep to the schemas of strict
functions. Knows no request.
"""

from __future__ import annotations

from typing import Any

from mysglang.srt.entrypoints.openai.markup_constraint import markup_arguments
from mysglang.srt.entrypoints.openai.tool_constraint import Structured, arguments_schema, literal, sequence, tag_text
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.function_call.core_types import CallStructure


def strict_calls(functions: Structured, *, special: bool) -> str:
    """Returns a structural tag: free text, in which calls keep to the schemas of the functions that are strict.

    `special`: the format's markers are special tokens. Raises InvalidRequest for a schema that cannot be enforced.
    """
    triggers: set[str] = set()
    tags: list[dict[str, Any]] = []
    for function, structures in functions:
        for one in structures:
            triggers.add(one.trigger)
            tags.append({"type": "tag", "begin": one.begin, "content": _content(function, one), "end": one.end})
    return tag_text({"type": "triggered_tags", "triggers": sorted(triggers), "tags": tags}, special=special)


def plain_json(functions: Structured) -> bool:
    """True if calls of these functions are JSON between fixed texts, which every grammar backend knows."""
    return not any(one.markup or one.behind_number for _, structures in functions for one in structures)


def _content(function: FunctionDefinition, structure: CallStructure) -> dict[str, Any]:
    arguments = _arguments(function, structure)
    if not structure.behind_number:
        return arguments
    return sequence([{"type": "regex", "pattern": "[0-9]+"}, literal(structure.behind_number), arguments])


def _arguments(function: FunctionDefinition, structure: CallStructure) -> dict[str, Any]:
    if structure.markup is None:
        schema = arguments_schema(function) if function.strict else {"type": "object"}
        return {"type": "json_schema", "json_schema": schema}
    if function.strict:
        return markup_arguments(function.name, arguments_schema(function), structure.markup)
    return {"type": "any_text"}
