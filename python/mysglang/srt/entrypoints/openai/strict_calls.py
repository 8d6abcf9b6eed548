"""Structural tags for answers with calls in the model's own format, which keep to the schemas of strict functions:
beside free text, beside JSON, or alone. Knows no request.
"""

from __future__ import annotations

import re
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
from mysglang.srt.errors import InvalidRequest
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
    calls = _framed(functions, frame, several)
    return tag_text({"type": "or", "elements": [json_part(schema), calls]}, special=special)


def framed_calls(functions: Structured, frame: CallsFrame, *, several: bool, special: bool) -> str:
    """Returns a structural tag: at least one call and nothing else. Arguments are as in `json_or_calls`."""
    return tag_text(_framed(functions, frame, several), special=special)


def call_behind_messages(functions: Structured, head: AnswerHead, *, special: bool) -> str:
    """Returns a structural tag: any number of messages of other kinds, then one call."""
    text = {"type": "any_text", "excludes": list(head.never)}
    messages = [tag(begin, text, head.message_end) for begin in head.messages]
    message = sequence([{"type": "or", "elements": messages}, literal(head.next_message)])
    # What begins with the beginning of a message would repeat it.
    forms = [form for form in _forms(functions) if not form["begin"].startswith(head.next_message)]
    calls = sequence([{"type": "star", "content": message}, {"type": "or", "elements": forms}])
    return tag_text(calls, special=special)


def json_behind_head(schema: object, functions: Structured, head: AnswerHead, *, special: bool) -> str:
    """Returns a structural tag: free text, up to a call or to the head of the answer with JSON behind it."""
    form = _triggered(functions)
    form["triggers"].append(head.trigger)
    form["tags"] += [tag(f"{head.trigger}{ending}", json_part(schema), "") for ending in head.endings]
    return tag_text({**form, "stop_after_first": True}, special=special)


def _forms(functions: Structured) -> list[dict[str, Any]]:
    """Returns every form of a call, from its first character."""
    return [
        tag(f"{one.ahead}{one.begin}", _content(function, one), one.end)
        for function, structures in functions
        for one in structures
    ]


def _framed(functions: Structured, frame: CallsFrame, several: bool) -> dict[str, Any]:
    calls = calls_between(_forms(functions), frame.between, several=several)
    return sequence([*map(literal, filter(None, [frame.before])), calls, *map(literal, filter(None, [frame.behind]))])


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
    return not any(
        one.markup or one.behind_number or one.style != "json" for _, structures in functions for one in structures
    )


def _content(function: FunctionDefinition, structure: CallStructure) -> dict[str, Any]:
    arguments = _arguments(function, structure)
    if not structure.behind_number:
        return arguments
    return sequence([{"type": "regex", "pattern": "[0-9]{1,3}"}, literal(structure.behind_number), arguments])


def _arguments(function: FunctionDefinition, structure: CallStructure) -> dict[str, Any]:
    if structure.markup is None:
        return json_part(_schema(function, structure), structure.style)
    if function.strict:
        return markup_arguments(function.name, arguments_schema(function), structure.markup)
    return {"type": "any_text"}


def _schema(function: FunctionDefinition, structure: CallStructure) -> dict[str, Any]:
    if not function.strict:
        return {"type": "object"}
    schema = arguments_schema(function)
    for name in schema.get("properties", ()):
        if not re.fullmatch(structure.parameters, name, re.DOTALL):
            where = f"tools: function {function.name!r} is strict, and its parameter {name!r}"
            raise InvalidRequest(f"{where} has a name that calls in this model's format cannot have.", param="tools")
    return schema
