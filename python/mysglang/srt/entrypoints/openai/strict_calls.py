"""Structural tags for answers that may call functions: free text or JSON, or calls that keep to the schemas of strict
functions. Knows no request.
"""

from __future__ import annotations

from typing import Any

from mysglang.srt.entrypoints.openai.markup_constraint import markup_arguments
from mysglang.srt.entrypoints.openai.tool_constraint import (
    Structured,
    arguments_schema,
    calls_between,
    json_part,
    literal,
    sequence,
    tag,
    tag_text,
)
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.function_call.core_types import AnswerHead, CallsFrame, CallStructure


def strict_calls(functions: Structured, *, special: bool) -> str:
    """Returns a structural tag: free text, in which calls keep to the schemas of the functions that are strict.

    `special`: the format's markers are special tokens. Raises InvalidRequest for a schema that cannot be enforced.
    """
    return tag_text(_triggered(functions), special=special)


def json_or_calls(schema: object, functions: Structured, frame: CallsFrame, *, several: bool, special: bool) -> str:
    """Returns a structural tag: either JSON, or calls and nothing else. Arguments are as in `strict_calls`.

    `frame`: how calls stand together. `several`: there may be more than one.
    """
    tags = [
        tag(f"{one.ahead}{one.begin}", _content(function, one), one.end)
        for function, structures in functions
        for one in structures
    ]
    calls = calls_between(tags, frame.between, several=several)
    framed = [*map(literal, filter(None, [frame.before])), calls, *map(literal, filter(None, [frame.behind]))]
    return tag_text({"type": "or", "elements": [json_part(schema), sequence(framed)]}, special=special)


def json_behind_head(schema: object, functions: Structured, head: AnswerHead, *, special: bool) -> str:
    """Returns a structural tag: free text, up to a call or to the head of the answer with JSON behind it."""
    form = _triggered(functions)
    form["triggers"].append(head.trigger)
    form["tags"] += [tag(f"{head.trigger}{ending}", json_part(schema), "") for ending in head.endings]
    return tag_text({**form, "stop_after_first": True}, special=special)


def _triggered(functions: Structured) -> dict[str, Any]:
    """Returns the part in which text is free, and calls begin where it has a trigger."""
    found = [(function, one) for function, structures in functions for one in structures]
    return {
        "type": "triggered_tags",
        "triggers": sorted({one.trigger for _, one in found}),
        "tags": [tag(one.begin, _content(function, one), one.end) for function, one in found],
    }


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
        return json_part(schema)
    if function.strict:
        return markup_arguments(function.name, arguments_schema(function), structure.markup)
    return {"type": "any_text"}
