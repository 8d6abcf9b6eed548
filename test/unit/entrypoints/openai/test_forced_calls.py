"""A choice that must be made: the answer is calls in the model's own format, where a grammar can hold them to their
schemas.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from fixtures.call_formats import FRAMED, LISTS, OFFERED, WRITERS, Call
from fixtures.tagged_answers import TaggedAnswer
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.tool_plan import ToolPlan, plan_tools
from mysglang.srt.function_call.function_call_parser import DETECTORS
from mysglang.srt.function_call.json_detectors import GptOssDetector
from mysglang.srt.parser.reasoning_parser import reasoning_format

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
STOP: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
CALLS = [Call("get_weather", {"city": "Köln <7>", "days": 3}), Call("stop", {})]
WRONG = [Call("get_weather", {"city": "Köln", "days": "three"}), Call("stop", {"now": 1}), Call("unknown", {})]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get_weather", WEATHER), tool("stop", STOP)]


def plan(parser: str, *, special: bool = False, thoughts: str | None = None, **fields: Any) -> ToolPlan:
    """Returns the plan of a request in which a call must be made."""
    formats = AnswerFormats(
        tool_call_parser=parser,
        detector=DETECTORS[parser],
        reasoning=reasoning_format(thoughts) if thoughts else None,
        calls_are_special=special,
    )
    message = {"role": "user", "content": "Hi"}
    asked = {"messages": [message], "model": "m", "tools": TOOLS, "tool_choice": "required", **fields}
    return plan_tools(ChatCompletionRequest.model_validate(asked), formats)


def tag_of(planned: ToolPlan) -> str:
    assert planned.grammar is not None
    return planned.grammar["structural_tag"]


def is_list(planned: ToolPlan) -> bool:
    """True if the answer is a JSON list, whatever the model's format is."""
    elements = orjson.loads(tag_of(planned))["format"]["elements"]
    return bool(elements[0] == {"type": "const_string", "value": "["})


def answer(parser: str, *, special: bool, thoughts: str | None = None, **fields: Any) -> TaggedAnswer:
    planned = plan(parser, special=special, thoughts=thoughts, **fields)
    assert planned.calls_are_special is special
    return TaggedAnswer(tag_of(planned), DETECTORS[parser].markers if special else ())


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("case", FRAMED)
def test_an_answer_is_calls_of_the_models_own_format(case: str, special: bool) -> None:
    parser, write = WRITERS[case]
    for calls in (CALLS[:1], CALLS) if case not in LISTS else (CALLS[:1], CALLS[1:]):
        said = answer(parser, special=special)
        assert not said.may_end()
        assert said.says(write(calls)) and said.may_end()
        text, found = DETECTORS[parser](OFFERED).detect_and_parse(said.text)
        assert (text.strip(), [(call.name, json.loads(call.parameters)) for call in found]) == ("", calls)
    for other in ("Hello", "[{", *(write([call]) for call in WRONG)):
        assert not answer(parser, special=special).says(other), other


@pytest.mark.parametrize("fields", [{"tool_choice": NAMED}, {"parallel_tool_calls": False}])
def test_one_call_alone(fields: dict[str, Any]) -> None:
    for case in FRAMED:
        parser, write = WRITERS[case]
        assert answer(parser, special=False, **fields).says(write(CALLS[:1])), case
        assert not answer(parser, special=False, **fields).says(write(CALLS)), case
        assert answer(parser, special=False, **fields).says(write(CALLS[1:])) is ("tool_choice" not in fields), case


CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Köln"}'
FIRST = ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Köln"}'
NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>A call: functions.get_weather.{NEXT}"
PREAMBLE = f"<|channel|>commentary<|message|>I look.{NEXT}"


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("call", [CALL, FIRST])
@pytest.mark.parametrize("before", [[], [THOUGHT], [THOUGHT, PREAMBLE], [PREAMBLE, THOUGHT, THOUGHT]])
def test_harmony_may_think_before_its_call(special: bool, call: str, before: list[str]) -> None:
    said = answer("gpt-oss", special=special, thoughts="gpt-oss")
    for message in before:
        assert said.says(message) and not said.may_end()
    for other in (
        "Hello",
        "<|channel|>final<|message|>",
        "<|return|>",
        "<|start|>assistant",
        call.replace("get_w", "w"),
    ):
        assert not said.says(other), other
    assert said.says(call) and said.may_end()
    assert not said.says(f"{NEXT}{CALL}")
    _, calls = GptOssDetector(OFFERED).detect_and_parse(said.text)
    assert [(one.name, json.loads(one.parameters)) for one in calls] == [("get_weather", {"city": "Köln"})]


@pytest.mark.parametrize("special", [False, True])
def test_a_thought_of_harmony_ends_before_another_message(special: bool) -> None:
    said = answer("gpt-oss", special=special, thoughts="gpt-oss")
    assert said.says(THOUGHT.removesuffix(NEXT))
    for other in ("<|channel|>final", "<|start|>assistant", CALL, "<|end|> ", "<|end|><|start|>user"):
        assert not said.says(other), other
    assert said.says(f"{NEXT}{CALL}") and said.may_end()


def test_harmony_whose_thoughts_stay_in_the_text() -> None:
    """Messages that are no calls would be in the content."""
    assert is_list(plan("gpt-oss"))
    assert is_list(plan("gpt-oss", thoughts="gpt-oss", separate_reasoning=False))
    assert not is_list(plan("gpt-oss", thoughts="gpt-oss"))


LIMITED = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
SHARED = {
    "type": "object",
    "properties": {
        f"p{number}": {"type": "array", "items": {"$ref": "#/$defs/A"}, "maxItems": number + 1} for number in range(60)
    },
    "$defs": {"A": {"type": "integer", "description": "x" * 4000}},
}


@pytest.mark.parametrize("parameters", [LIMITED, SHARED], ids=["limited", "long"])
def test_schemas_that_bare_text_cannot_be_held_to(parameters: dict[str, Any]) -> None:
    """A JSON list can be, and is shorter."""
    assert is_list(plan("qwen3_coder", tools=[tool("f", parameters)]))
    assert not is_list(plan("hermes", tools=[tool("f", parameters)]))
    if parameters is LIMITED:
        said = TaggedAnswer(tag_of(plan("qwen3_coder", tools=[tool("f", parameters)])), ())
        assert not said.says('[{"name": "f", "parameters": {"city": "Berlin')
        assert said.says('[{"name": "f", "parameters": {"city": "Köln"}}]') and said.may_end()


@pytest.mark.parametrize(
    ("parameters", "takes_others"),
    [
        (None, False),
        ({}, False),
        ({"type": "object", "properties": {}}, False),
        ({"properties": {"a": {}}, "additionalProperties": False}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, True),
        ({"type": "object"}, True),
        ({"type": "object", "additionalProperties": True}, True),
    ],
)
def test_parameters_that_no_schema_names(parameters: dict[str, Any] | None, takes_others: bool) -> None:
    """Between marks, none could be written."""
    function = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    planned = plan("glm45", tools=[{"type": "function", "function": function}])
    assert is_list(planned) is takes_others
    if takes_others:
        said = TaggedAnswer(tag_of(planned), ())
        assert said.says('[{"name": "f", "parameters": {"other": "x"}}]') and said.may_end()
