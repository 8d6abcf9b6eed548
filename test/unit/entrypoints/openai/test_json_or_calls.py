"""A response format beside tools: the answer is JSON of that format, or calls as the model writes them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from fixtures.call_formats import FRAMED, LISTS, OFFERED, TOOLS, WRITERS, Call
from fixtures.dialects import CHAT, says
from fixtures.scripted_engine import serve
from fixtures.tagged_answers import TaggedAnswer
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.strict_calls import json_behind_head, json_or_calls
from mysglang.srt.entrypoints.openai.tool_constraint import Structured
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.function_call.base_detector import FunctionCallDetector
from mysglang.srt.function_call.function_call_parser import DETECTORS
from mysglang.srt.function_call.json_detectors import GptOssDetector
from mysglang.srt.sampling.sampling_params import SamplingParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
FUNCTIONS = [
    FunctionDefinition(
        name="get_weather",
        parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        strict=True,
    ),
    FunctionDefinition(name="stop"),
]
CALLS = [Call("get_weather", {"city": "Köln <7>", "days": 3}), Call("stop", {})]
WRONG = Call("get_weather", {"city": "Köln", "days": "three"})
TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
FINAL = '<|channel|>final<|message|>{"ok": true}'
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


class Answer(TaggedAnswer):
    """An answer that is JSON of the schema or calls."""

    def __init__(self, detector: type[FunctionCallDetector], *, special: bool, several: bool = True) -> None:
        structured: Structured = [(one, detector.structures(one.name)) for one in FUNCTIONS]
        if detector.answer_head is not None:
            tag = json_behind_head(SCHEMA, structured, detector.answer_head, special=special)
        else:
            assert detector.frame is not None
            tag = json_or_calls(SCHEMA, structured, detector.frame, several=several, special=special)
        super().__init__(tag, detector.markers if special else ())


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("case", FRAMED)
def test_an_answer_is_json_or_calls(case: str, special: bool) -> None:
    parser, write = WRITERS[case]
    detector = DETECTORS[parser]
    answer = Answer(detector, special=special)
    assert answer.says('{"ok": true}') and answer.may_end()
    for calls in (CALLS[:1], CALLS) if case not in LISTS else (CALLS[:1], CALLS[1:]):
        answer = Answer(detector, special=special)
        assert answer.says(write(calls)) and answer.may_end()
        said, found = detector(OFFERED).detect_and_parse(answer.text)
        assert (said.strip(), [(call.name, json.loads(call.parameters)) for call in found]) == ("", calls)
    for text in ("Hello", '{"no": 1}', write([WRONG]), write([Call("unknown", {})])):
        assert not Answer(detector, special=special).says(text), text


def test_one_call_alone() -> None:
    for case in FRAMED:
        parser, write = WRITERS[case]
        assert Answer(DETECTORS[parser], special=False, several=False).says(write(CALLS[:1])), case
        assert not Answer(DETECTORS[parser], special=False, several=False).says(write(CALLS)), case


@pytest.mark.parametrize("special", [False, True])
def test_harmony(special: bool) -> None:
    for kind in ("", " json", " <|constrain|>json"):
        answer = Answer(GptOssDetector, special=special)
        assert answer.says(ANALYSIS)
        assert not answer.says("<|channel|>final<|message|>Hello")
        assert answer.says(f'<|channel|>final{kind}<|message|>{{"ok": true}}')
        assert answer.may_end() and not answer.says(" ")
    head = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    answer = Answer(GptOssDetector, special=special)
    assert answer.says(ANALYSIS) and answer.says(f'{head}{{"city": "Köln"}}') and answer.may_end()
    assert not Answer(GptOssDetector, special=special).says(f'{head}{{"days": "three"}}')


STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]  # type: ignore[dict-item]


async def sent(calls: str, thoughts: str | None = None, text: str = "{}", **fields: Any) -> tuple[Any, SamplingParams]:
    """Returns the message of an answer to a request with the format, and the parameters that the engine got."""
    options = AppOptions(tool_call_parser=calls, reasoning_parser=thoughts)
    async with serve(says(text), options, template=TEMPLATE) as served:
        answer = await CHAT.ask(served, response_format=FORMAT, **fields)
        return answer["choices"][0]["message"], served.engine.requests[0].sampling_params


@pytest.mark.parametrize("tools", [TOOLS, STRICT], ids=["loose", "strict"])
async def test_tools_beside_a_response_format(tools: list[dict[str, Any]]) -> None:
    write = WRITERS["hermes"][1]
    message, params = await sent("hermes", text=write(CALLS), tools=tools)
    assert params.json_schema is None
    json_part, calls_part = orjson.loads(params.structural_tag or "")["format"]["elements"]
    assert json_part["json_schema"] == SCHEMA
    assert not calls_part["elements"][0]["stop_after_first"]
    called = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert called == CALLS and not message["content"]
    message, params = await sent("hermes", text='{"ok": true}', tools=tools, parallel_tool_calls=False)
    assert (message["content"], message["tool_calls"]) == ('{"ok": true}', None)
    assert orjson.loads(params.structural_tag or "")["format"]["elements"][1]["elements"][0]["stop_after_first"]


async def test_a_forced_call_beside_a_response_format() -> None:
    """There is no text that the format could be about."""
    _, params = await sent("hermes", text=WRITERS["hermes"][1](CALLS), tools=TOOLS, tool_choice="required")
    assert params.json_schema is None
    assert "get_weather" in (params.structural_tag or "") and "ok" not in (params.structural_tag or "")


async def test_formats_of_calls_without_a_grammar() -> None:
    """Loose tools give way to the response format, and strict ones are refused."""
    _, params = await sent("minimax-m3", tools=TOOLS)
    assert (params.structural_tag, orjson.loads(params.json_schema or "")) == (None, SCHEMA)
    async with serve(says("{}"), AppOptions(tool_call_parser="minimax-m3"), template=TEMPLATE) as served:
        response = await served.post(CHAT.path, CHAT.asked(response_format=FORMAT, tools=STRICT))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("tools", [[], TOOLS, STRICT], ids=["none", "loose", "strict"])
async def test_harmony_thinks_before_it_answers_in_json(tools: list[dict[str, Any]]) -> None:
    message, params = await sent("gpt-oss", "gpt-oss", ANALYSIS + FINAL, tools=tools)
    assert (message["reasoning_content"], message["content"]) == ("Hm.", '{"ok": true}')
    tag = orjson.loads(params.structural_tag or "")
    assert params.json_schema is None and tag["format"]["stop_after_first"]
    assert "<|channel|>final" in tag["format"]["triggers"]


@pytest.mark.parametrize(("thoughts", "apart"), [("gpt-oss", False), ("none", True)])
async def test_harmony_whose_thoughts_stay_in_the_text(thoughts: str, apart: bool) -> None:
    """Text before the answer would be in the content, which is to be JSON."""
    message, params = await sent("gpt-oss", thoughts, '{"ok": true}', separate_reasoning=apart)
    assert (message["content"], params.structural_tag) == ('{"ok": true}', None)
    assert orjson.loads(params.json_schema or "") == SCHEMA


@pytest.mark.parametrize("calls", ["hermes", "gpt-oss"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": "{bad"}, "json_schema"),
        ({"json_schema": '{"const": NaN}'}, "json_schema"),
        ({"json_schema": "[1]"}, "json_schema"),
        ({"structured_outputs": {"json": "{bad"}}, "structured_outputs"),
        ({"json_schema": "{}", "regex": "a"}, "regex"),
    ],
)
async def test_malformed_schemas_beside_tools(calls: str, fields: dict[str, Any], param: str) -> None:
    options = AppOptions(tool_call_parser=calls, reasoning_parser="gpt-oss")
    async with serve(says("{}"), options, template=TEMPLATE) as served:
        for tools in ([], TOOLS, STRICT):
            response = await served.post(CHAT.path, CHAT.asked(tools=tools, **fields))
            if response.status_code == 200:
                # Without tools, a scheduler finds out.
                assert (tools, calls) == ([], "hermes")
            else:
                assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("schema", ["$$ANY$$", '{"const": 1000000000000000000000000000000}'])
async def test_schemas_that_only_a_text_can_hold(schema: str) -> None:
    """Any JSON has a schema, and a number of more than 64 bits has no place in a tag."""
    async with serve(says("{}"), AppOptions(tool_call_parser="hermes"), template=TEMPLATE) as served:
        await CHAT.ask(served, json_schema=schema, tools=TOOLS)
        params = served.engine.requests[0].sampling_params
    if schema == "$$ANY$$":
        assert orjson.loads(params.structural_tag or "")["format"]["elements"][0]["json_schema"] == {}
    else:
        assert (params.json_schema, params.structural_tag) == (schema, None)


async def test_schemas_that_are_too_long_together() -> None:
    one, other = ({"type": "object", "description": letter * (100 << 10)} for letter in "xy")
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": one}}
    tool = {"type": "function", "function": {"name": "f", "parameters": other, "strict": True}}
    async with serve(says("{}"), AppOptions(tool_call_parser="hermes"), template=TEMPLATE) as served:
        response = await served.post(CHAT.path, CHAT.asked(response_format=wanted, tools=[tool]))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format or tools")
    assert "at most 131072 bytes" in response.json()["error"]["message"]


async def test_other_routes_name_their_own_fields() -> None:
    one, other = ({"type": "object", "description": letter * (100 << 10)} for letter in "xy")
    body = {
        "input": "Hi",
        "tools": [{"type": "function", "name": "f", "strict": True, "parameters": one}],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": other}},
    }
    async with serve(says("{}"), AppOptions(tool_call_parser="hermes"), template=TEMPLATE) as served:
        response = await served.post("/v1/responses", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "text or tools")
    assert response.json()["error"]["message"].startswith("text or tools: the schemas")
