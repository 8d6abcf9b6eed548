"""Strict functions: whatever a model could write under the grammar is, once read, what the schema allows; and calls as
models of the family write them are allowed.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from fixtures.call_formats import WRITERS, Call
from fixtures.dialects import CHAT, says
from fixtures.scripted_engine import serve
from fixtures.tagged_answers import TaggedAnswer, backend_with
from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.strict_calls import strict_calls
from mysglang.srt.entrypoints.openai.tool_constraint import Structured
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.base_detector import FunctionCallDetector
from mysglang.srt.function_call.function_call_parser import DETECTORS
from mysglang.srt.function_call.json_detectors import GptOssDetector
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.sampling.grammar_spec import GrammarSpec

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string", "description": "Where.", "x-order": 1, "maximum_words": 3},
    "days": {"type": "integer"},
    "unit": {"$ref": "#/$defs/Unit"},
    "since": {"type": "string", "format": "date"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    "exact": {"type": ["boolean", "null"]},
    "more": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "u": {"$ref": "#/$defs/Unit"}},
        "required": ["x"],
        "additionalProperties": False,
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
    "$defs": {"Unit": {"enum": ["C", "F", "7"], "type": "string"}},
}
TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
FUNCTIONS = [
    FunctionDefinition(name="get_weather", parameters=SCHEMA, strict=True),
    FunctionDefinition(name="get", parameters={"additionalProperties": False}, strict=True),
    FunctionDefinition(name="loose", parameters=SCHEMA),
]
OFFERED = OfferedTools([{"type": "function", "function": one.model_dump()} for one in FUNCTIONS])
CALLS = [
    Call(
        "get_weather",
        {
            "city": "Köln <7>\nam Rhein",
            "days": 3,
            "unit": "7",
            "since": "2026-11-29",
            "note": "no",
            "more": {"x": 1.5, "u": "C"},
        },
    ),
]
WRONG = [
    {"city": "Köln", "days": "three", "unit": "C"},
    {"city": "Köln", "days": 3, "unit": "K"},
    {"city": "Köln", "days": 3},
    {"city": "Köln", "days": 3, "unit": "C", "since": "2026-13-01"},
    {"city": "Köln", "days": 3, "unit": "C", "more": {"x": "far"}},
    {"city": "Köln", "days": 3, "unit": "C", "wind": True},
]
NOT_HELD = {"minimax-m3"}
"""Formats for which `strict` is refused."""
HELD = [
    case
    for case, (parser, _) in WRITERS.items()
    # These models may write all parameters as one object, which the grammar does not let them do.
    if parser not in NOT_HELD and not case.endswith("as JSON")
]


class Answer(TaggedAnswer):
    """An answer with free text and calls of `FUNCTIONS`, whose markers are special tokens or none."""

    def __init__(self, detector: type[FunctionCallDetector], *, special: bool) -> None:
        structured: Structured = [(one, detector.structures(one.name)) for one in FUNCTIONS]
        super().__init__(strict_calls(structured, special=special), detector.markers if special else ())


def assert_allowed(name: str, arguments: object) -> None:
    """Checks the arguments of a strict function of this name."""
    assert isinstance(arguments, dict)
    if name == "get":
        assert not arguments
        return
    assert {"city", "days", "unit"} <= arguments.keys() <= PROPERTIES.keys()
    assert isinstance(arguments["city"], str)
    assert type(arguments["days"]) is int
    assert arguments["unit"] in ("C", "F", "7")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", arguments.get("since", "2026-01-01"))
    assert arguments.get("note") is None or isinstance(arguments["note"], str)
    assert arguments.get("exact") is None or isinstance(arguments["exact"], bool)
    more = arguments.get("more", {"x": 1})
    assert {"x"} <= more.keys() <= {"x", "u"}
    assert isinstance(more["x"], int | float)
    assert more.get("u", "C") in ("C", "F", "7")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("case", HELD)
def test_calls_as_the_family_writes_them(case: str, special: bool) -> None:
    parser, write = WRITERS[case]
    answer = Answer(DETECTORS[parser], special=special)
    assert answer.says(" I look. ")
    assert answer.may_end()
    assert answer.says(write(CALLS))
    assert answer.may_end()
    said, calls = DETECTORS[parser](OFFERED).detect_and_parse(answer.text)
    assert said.strip() == "I look."
    assert [(call.name, json.loads(call.parameters)) for call in calls] == CALLS


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("case", HELD)
def test_arguments_that_the_schema_does_not_allow(case: str, special: bool) -> None:
    parser, write = WRITERS[case]
    for arguments in WRONG:
        assert not Answer(DETECTORS[parser], special=special).says(write([Call("get_weather", arguments)])), arguments
        assert Answer(DETECTORS[parser], special=special).says(write([Call("loose", arguments)])), arguments
    if case != "pythonic":  # there it is a text in brackets
        assert not Answer(DETECTORS[parser], special=special).says(write([Call("unknown", {})]))


@pytest.mark.parametrize("parser", sorted({WRITERS[case][0] for case in HELD}))
def test_whatever_is_written(parser: str) -> None:
    detector = DETECTORS[parser]
    for seed in range(12):
        rng = random.Random(seed)
        answer = Answer(detector, special=bool(seed % 2))
        function = rng.choice(FUNCTIONS[:2])
        structure = rng.choice(detector.structures(function.name))
        number = f"0{structure.behind_number}" if structure.behind_number else ""
        assert answer.says(f"{structure.ahead}{structure.begin}{number}")
        ends = [structure.end, '"', "'", '<|"|>', ")", "}", "]", *((structure.markup.end,) if structure.markup else ())]
        for count in range(600):
            if answer.may_end():
                break
            rng.shuffle(ends)
            if count < 8 or rng.random() < 0.5 or not any(end and answer.says(end) for end in ends):
                answer.draws(rng)
        else:
            raise AssertionError(f"no end: {answer.text!r}")
        _, calls = detector(OFFERED).detect_and_parse(answer.text)
        assert calls, answer.text
        assert_allowed(calls[0].name, json.loads(calls[0].parameters))


def test_the_first_head_of_harmony() -> None:
    """It may begin with the recipient, which alone may also occur in a text."""
    head = " to=functions.get_weather<|channel|>"
    for special in (False, True):
        for kind in ("json", "<|constrain|>json"):
            answer = Answer(GptOssDetector, special=special)
            assert answer.says(f"{head}commentary {kind}<|message|>")
            assert not answer.says('{"town')
            assert answer.says('{"city')
        for other in (f"{head}analysis", " to=functions.get_weather<|message|>{", " to=functions.loose<|message|>"):
            assert not Answer(GptOssDetector, special=special).says(other)
        for text in (" to=functions.get_weather", " to=functions.get_weather < 3", " to=python<|channel|>commentary"):
            answer = Answer(GptOssDetector, special=special)
            assert answer.says(text)
            assert answer.may_end()


@pytest.mark.parametrize("parser", sorted({WRITERS[case][0] for case in HELD}))
def test_triggers_begin_with_what_few_tokens_have(parser: str) -> None:
    """At each character of a trigger, xgrammar looks at every token that has the first one. With a space it took half a
    minute.
    """
    for function in FUNCTIONS:
        for structure in DETECTORS[parser].structures(function.name):
            assert structure.begin.startswith(structure.trigger)
            assert structure.trigger[0] not in " etaoinsr"


def in_markup(**schema: Any) -> str:
    function = FunctionDefinition(name="f", parameters={"additionalProperties": False, **schema}, strict=True)
    return strict_calls([(function, DETECTORS["qwen3_coder"].structures("f"))], special=False)


LOOP = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}}}
WIDE = {"$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}, "description": "x" * 10_000}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "^x$"}}}, "parameter 'a' is restricted by 'pattern'"),
        ({"properties": {"a": {"type": ["null", "string"], "maxLength": 3}}}, "'a' is restricted by 'maxLength'"),
        ({"properties": {"a": {"minLength": 3}}}, "'a' is restricted by 'minLength' without a type"),
        ({"properties": {"a": {"enum": ["x</parameter>y"]}}}, "'a' has a value that would end itself"),
        ({"properties": {"a>": {"type": "string"}}}, "'a>' has a name"),
        ({"properties": {"a": {"$ref": "#/$defs/B"}}}, "refers to '#/$defs/B'"),
        ({"properties": {"a": False}}, "'a' may have no value"),
        ({"properties": {"a": {"enum": []}}}, "'a' may have no value"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, **LOOP}, "32 within one another"),
        ({"properties": {f"a{i}": {"$ref": "#/$defs/A"} for i in range(200)}, **WIDE}, "repeats definitions"),
        ({"properties": {f"a{i}": {} for i in range(5000)}}, "more than 4096 schemas"),
        ({"required": ["a"]}, "'f' is strict, and requires 'a', which"),
        ({"anyOf": [{"required": []}]}, "'f' is strict, and is restricted by 'anyOf'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schemas_that_bare_text_is_not_held_to(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_markup(**schema)
    assert words in str(refused.value)
    assert refused.value.param == "tools"


def test_special_tokens_are_text_where_the_tag_says_so() -> None:
    """Elsewhere they are never allowed, so that no client's JSON has one in a string."""
    backend, _, ids = backend_with(("<call>",))
    form = {"type": "sequence", "elements": [{"type": "const_string", "value": "<call>"}, {"type": "any_text"}]}
    for special in (False, True):
        text = json.dumps({"format": form, "special_tokens": special})
        spec = GrammarSpec("structural_tag", text)
        matcher = backend.load(spec, backend.compile(spec)).matcher()
        assert matcher.accept(ids["<call>"]) is special
    with pytest.raises(GrammarError, match="special_tokens must be true or false"):
        backend.compile(GrammarSpec("structural_tag", json.dumps({"format": form, "special_tokens": 1})))


def test_types_that_a_schema_refers_to() -> None:
    schema = {
        "properties": {
            "zip": {"$ref": "#/$defs/Zip"},
            "place": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
            "loop": {"$ref": "#/$defs/Loop"},
            "other": {"$ref": "https://example.com/zip"},
        },
        "$defs": {"Zip": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
    }
    offered = OfferedTools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    found = [offered.types("f", name) for name in ("zip", "place", "loop", "other", "unknown")]
    assert found == [{"string"}, {"string", "null"}, set(), set(), set()]
    text = "<function=f>\n<parameter=zip>\n01234\n</parameter>\n<parameter=place>\n98765\n</parameter>\n</function>"
    _, (call,) = DETECTORS["qwen3_coder"](offered).detect_and_parse(text)
    assert json.loads(call.parameters) == {"zip": "01234", "place": "98765"}


@pytest.mark.parametrize(
    ("parser", "backend", "words"),
    [("minimax-m3", None, "minimax-m3"), ("qwen3_coder", "llguidance", "xgrammar"), ("hermes", "outlines", "xgrammar")],
)
async def test_strict_tools_that_no_grammar_holds(parser: str, backend: str | None, words: str) -> None:
    options = AppOptions(tool_call_parser=parser, grammar_backend=backend)
    strict = [{"type": "function", "function": {"name": "f", "strict": True}}]
    async with serve(says("Ok"), options, template=TEMPLATE) as served:
        response = await served.post(CHAT.path, CHAT.asked(tools=strict))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert words in response.json()["error"]["message"]


def test_a_name_that_a_head_cannot_hold() -> None:
    odd = FunctionDefinition(name="f>", strict=True)
    with pytest.raises(InvalidRequest, match="'f>' is strict, and has a name"):
        strict_calls([(odd, DETECTORS["qwen3_coder"].structures("f>"))], special=False)
