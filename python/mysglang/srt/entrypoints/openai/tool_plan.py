"""ToolPlan: what a chat request asks of tools: which are offered, how calls are found in the answer, and what that is
held to where it must call one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.answer_parser import CallFinder, NoCalls
from mysglang.srt.entrypoints.openai.field_names import EITHER, own_words
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.strict_calls import (
    call_behind_messages,
    framed_calls,
    json_behind_head,
    json_or_calls,
    plain_json,
    strict_calls,
)
from mysglang.srt.entrypoints.openai.tool_constraint import Structured, list_of_calls, list_schema
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition, NamedToolChoice
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.json_detectors import JsonArrayDetector
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.sampling.grammar_spec import MAX_GRAMMAR_BYTES, GrammarKind, GrammarSpec, check_grammars


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How the tools of one request are offered and found. The default is a request without tools."""

    offered: Sequence[Mapping[str, Any]] = ()
    """The tools as the chat template receives them."""
    find_calls: Callable[[], CallFinder] = NoCalls
    """Creates the parser that finds the calls in the answer of a choice."""
    calls_are_special: bool = False
    """True if special tokens must be shown to find them."""
    grammar: Mapping[str, str] | None = None
    """The sampling parameter that constrains the answer, with its text; None if there is none."""
    grammar_field: str = "tool_choice"
    """The request's field to which the grammar is due."""
    holds_format: bool = False
    """True if the grammar also does what the request's format of answers asks for."""
    schema_field: str = "tools"
    """The request's field whose schemas the grammar has, as errors name it."""
    grammar_words: str = "the tools"
    """The part of that field that needs a grammar, as errors say it."""


def plan_tools(body: ChatCompletionRequest, formats: AnswerFormats, wanted: GrammarSpec | None = None) -> ToolPlan:
    """Plans how the tools of a request are offered and found. Raises InvalidRequest for tools without a format of
    calls, or a choice that is not offered.

    `wanted`: the grammar of an answer without calls.
    """
    choice, functions = body.tool_choice, [tool.function for tool in body.tools]
    if choice == "none" or (choice == "auto" and not functions):
        return _without_tools(body, formats, wanted)
    offered = [tool.as_sent() for tool in body.tools]
    if choice == "auto":
        return _free_choice(functions, offered, formats, body, wanted)
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        functions = [function for function in functions if function.name == name]
        if not functions:
            raise InvalidRequest(f"tool_choice: there is no tool named {name!r}.", param="tool_choice")
    elif not functions:
        raise InvalidRequest("tool_choice: there are no tools to choose from.", param="tool_choice")
    plan = _forced_choice(functions, offered, formats, body)
    # The answer has no text that a format of JSON could be about.
    return replace(plan, holds_format=wanted is not None and wanted.kind == "json_schema")


def _without_tools(body: ChatCompletionRequest, formats: AnswerFormats, wanted: GrammarSpec | None) -> ToolPlan:
    if wanted is None or formats.detector is None or formats.detector.answer_head is None:
        return ToolPlan()
    if (text := _json_or_calls(wanted, (), formats, body)) is None:
        return ToolPlan()
    return ToolPlan(grammar={"structural_tag": text}, holds_format=True, schema_field=body.grammar_field(wanted.kind))


def _free_choice(
    functions: Sequence[FunctionDefinition],
    offered: Sequence[Mapping[str, Any]],
    formats: AnswerFormats,
    body: ChatCompletionRequest,
    wanted: GrammarSpec | None,
) -> ToolPlan:
    detector, known = formats.detector, OfferedTools(offered)
    if detector is None:
        message = (
            "tools: this server does not know how its model writes calls; it must be started with --tool-call-parser. "
            'Or send tool_choice "none".'
        )
        raise InvalidRequest(message, param="tools")
    plan = ToolPlan(
        offered=offered,
        find_calls=lambda: detector(known),
        calls_are_special=formats.calls_are_special,
        grammar_field="tools",
        grammar_words="strict functions",
    )
    strict, structured = any(function.strict for function in functions), _structured(functions, formats)
    if strict:
        _need_grammars(formats, "tools", "strict")
    if wanted is not None and structured is not None:
        both = _json_or_calls(wanted, structured, formats, body)
        if both is not None:
            field = f"{body.grammar_field(wanted.kind)}{EITHER}tools"
            return replace(plan, grammar=_limited("structural_tag", both, field), holds_format=True, schema_field=field)
    return replace(plan, grammar=_limited("structural_tag", _strict_grammar(structured, formats))) if strict else plan


def _json_or_calls(
    wanted: GrammarSpec, structured: Structured, formats: AnswerFormats, body: ChatCompletionRequest
) -> str | None:
    """Returns the structural tag of an answer that is either what is wanted or calls; None if none can be written.
    Raises InvalidRequest for a malformed grammar.
    """
    if wanted.kind != "json_schema" or formats.detector is None or not formats.any_structural_tag:
        return None
    with own_words(body.grammar_names):
        check_grammars({wanted.kind: wanted.text})
    schema, special = msgspec.json.decode(wanted.schema), formats.calls_are_special
    if not _writable(schema):
        return None
    if (head := formats.detector.answer_head) is not None:
        # Elsewhere the text before the head would be in the content, which is to be JSON.
        separated = _separated(formats, body)
        return json_behind_head(schema, structured, head, special=special) if separated else None
    if (frame := formats.detector.frame) is None:
        return None
    return json_or_calls(schema, structured, frame, several=body.parallel_tool_calls, special=special)


def _writable(schema: object) -> bool:
    """True if the schema can be a part of a structural tag: no number in it has more than 64 bits."""
    try:
        orjson.dumps(schema)
    except TypeError:
        return False
    return True


def _forced_choice(
    functions: Sequence[FunctionDefinition],
    offered: Sequence[Mapping[str, Any]],
    formats: AnswerFormats,
    body: ChatCompletionRequest,
) -> ToolPlan:
    several = body.parallel_tool_calls and body.tool_choice == "required"
    _need_grammars(formats, "tool_choice", "a choice that must be made")
    detector, known = formats.detector, OfferedTools(offered)
    if detector is not None and (text := _calls_alone(functions, formats, body, several=several)) is not None:
        return ToolPlan(
            offered=offered,
            find_calls=lambda: detector(known),
            calls_are_special=formats.calls_are_special,
            grammar={"structural_tag": text},
        )
    if formats.any_structural_tag:
        grammar = _limited("structural_tag", list_of_calls(functions, several=several))
    else:
        grammar = _limited("json_schema", list_schema(functions, several=several))
    # With `separate_reasoning`, thoughts are taken out of the text before.
    behind = None if formats.reasoning is None or body.separate_reasoning else formats.reasoning.end
    return ToolPlan(offered=offered, find_calls=lambda: JsonArrayDetector(known, behind=behind), grammar=grammar)


def _calls_alone(
    functions: Sequence[FunctionDefinition], formats: AnswerFormats, body: ChatCompletionRequest, *, several: bool
) -> str | None:
    """Returns the structural tag of an answer that is calls in the model's own format, all held to their schemas; None
    if none can be written.
    """
    held = [function.model_copy(update={"strict": True}) for function in functions]
    if not formats.any_structural_tag or (structured := _structured(held, formats)) is None:
        return None
    assert formats.detector is not None, "it told the structures"
    if any(_takes_others(function) and any(one.markup for one in structures) for function, structures in structured):
        return None  # between marks, only parameters that the schema names are written
    frame, head, special = formats.detector.frame, formats.detector.answer_head, formats.calls_are_special
    try:
        if frame is not None:
            text = framed_calls(structured, frame, several=several, special=special)
        elif head is not None and _separated(formats, body):
            text = call_behind_messages(structured, head, special=special)
        else:
            return None
    except InvalidRequest:
        return None  # the format has bare text, which cannot be held to one of the schemas
    return text if len(text.encode()) <= MAX_GRAMMAR_BYTES else None


def _takes_others(function: FunctionDefinition) -> bool:
    """True if calls may have parameters that the schema does not name. No schema at all means that there are none."""
    schema = function.parameters
    return schema.get("additionalProperties", bool(schema) and "properties" not in schema) is not False


def _separated(formats: AnswerFormats, body: ChatCompletionRequest) -> bool:
    """True if messages that are thoughts do not become content."""
    return formats.reasoning is not None and body.separate_reasoning


def _strict_grammar(structured: Structured | None, formats: AnswerFormats) -> str:
    """Returns the structural tag for calls of the model's choice. Raises InvalidRequest if none can be written."""
    if structured is None:
        why = f"for calls in the format of {formats.tool_call_parser}"
    elif not (formats.any_structural_tag or _older_form_writes(structured, formats)):
        why = f"for this model's calls with --grammar-backend {formats.grammar_backend}; xgrammar supports it"
    else:
        return strict_calls(structured, special=formats.calls_are_special)
    message = f'tools: strict is not supported {why}. Send tool_choice "required", or name a function.'
    raise InvalidRequest(message, param="tools")


def _limited(kind: GrammarKind, text: str, field: str = "tools") -> dict[str, str]:
    """Returns the grammar as a sampling parameter. Raises InvalidRequest, which names the field of its schemas, for one
    too long.
    """
    if (size := len(text.encode())) > MAX_GRAMMAR_BYTES:
        what = "the schemas, with the forms of the functions' calls, may have"
        raise InvalidRequest(f"{field}: {what} at most {MAX_GRAMMAR_BYTES} bytes, got {size}.", param=field)
    return {kind: text}


def _structured(functions: Sequence[FunctionDefinition], formats: AnswerFormats) -> Structured | None:
    """Returns how calls of each function are written; None if no grammar can express that."""
    if formats.detector is None:
        return None
    found = [(function, formats.detector.structures(function.name)) for function in functions]
    return found if all(structures for _, structures in found) else None


def _older_form_writes(structured: Structured, formats: AnswerFormats) -> bool:
    """True if calls are JSON between texts without special tokens, for which the older form of tags is enough."""
    return formats.tags_of_json and not formats.calls_are_special and plain_json(structured)


def _need_grammars(formats: AnswerFormats, field: str, what: str) -> None:
    if formats.grammar_backend == "none":
        message = f"{field}: {what} needs structured output, and this server runs with --grammar-backend none."
        raise InvalidRequest(message, param=field)
