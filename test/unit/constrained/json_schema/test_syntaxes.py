"""Arguments of calls in the syntax of Gemma 4 and in Python's: whatever is written is, once read, what the schema
allows, and what models write is allowed.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from fixtures.grammar_walk import backend_named
from fixtures.tagged_answers import TaggedAnswer
from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.entrypoints.openai.strict_calls import framed_calls
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.function_call.core_types import CallsFrame
from mysglang.srt.function_call.function_call_parser import DETECTORS
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.sampling.grammar_spec import GrammarSpec

PARSERS = ("gemma4", "pythonic")
ODD = [
    "",
    "it's",
    'a "b"',
    "back\\slash",
    "two\nlines",
    "tab\tand \x01",
    '<|"|',
    "ä 中 🦜",
    "None",
    "3",
    "a:b,{c}",
    " x ",
]


def arguments(schema: object) -> dict[str, Any]:
    """The schema of the arguments of a function with one parameter."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def tag_of(parser: str, parameters: dict[str, Any]) -> str:
    function = FunctionDefinition(name="f", parameters=parameters, strict=True)
    return framed_calls(
        [(function, DETECTORS[parser].structures("f")[-1:])], CallsFrame(), several=False, special=False
    )


def read(parser: str, text: str, parameters: dict[str, Any]) -> Any:
    """The arguments of the only call in a text, as a client gets them."""
    offered = OfferedTools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    said, (call,) = DETECTORS[parser](offered).detect_and_parse(text)
    assert not said
    return json.loads(call.parameters)


TREE = {
    "type": "object",
    "properties": {"b": {"type": "string"}, "A": {"type": "array", "items": {"$ref": "#/properties/a"}}},
    "required": ["b"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "text": {"type": "string"},
    "short text": {"type": "string", "maxLength": 5},
    "text of bounded length": {"type": "string", "minLength": 2, "maxLength": 200},
    "pattern": {"type": "string", "pattern": "^[<a-c'\"\\\\]{2,9}$"},
    "open pattern": {"type": "string", "pattern": "x.*y"},
    "format": {"type": "string", "format": "date-time"},
    "odd texts": {"enum": ODD},
    "constant": {"const": {"z": [1, True, None, "it's"], "B": {"k": 1.5}}},
    "number": {"type": "number", "minimum": -3, "maximum": 40},
    "whole number": {"type": "integer"},
    "words": {"type": ["boolean", "null"]},
    "text or number": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "number"}]},
    "list": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
    "places": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
        "minItems": 2,
    },
    "any object": {"type": "object", "maxProperties": 3},
    "names": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}}, "additionalProperties": False},
    "odd names": {"type": "object", "properties": {name: {"type": "null"} for name in ODD}, "required": ODD[1:]},
    "anything": True,
    "tree": TREE,
}


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("case", SCHEMAS)
def test_whatever_is_written(parser: str, case: str) -> None:
    parameters = arguments(SCHEMAS[case])
    tag, ended = tag_of(parser, parameters), 0
    for seed in range(12):
        rng, answer = random.Random(seed), TaggedAnswer(tag, ())
        ends = ['"', "'", '<|"|>', ")", "}", "]", ")]", "}<tool_call|>"]
        for count in range(250):
            if answer.may_end():
                ended += 1
                jsonschema_rs.validate(parameters, read(parser, answer.text, parameters))
                break
            rng.shuffle(ends)
            if count < 12 or rng.random() < 0.5 or not any(map(answer.says, ends)):
                answer.draws(rng)
    assert ended > 5


@pytest.mark.parametrize(
    ("parser", "written", "value"),
    [
        ("gemma4", '<|"|>it\'s "so" <|\n<|"|>', 'it\'s "so" <|\n'),
        ("gemma4", "[1,-2.5e3,true,null]", [1, -2500.0, True, None]),
        ("gemma4", '{<|"|>k:<|"|>:<|"|>v<|"|>,m:[]}', {"k:": "v", "m": []}),
        ("pythonic", '"it\'s\\n\\"so\\""', 'it\'s\n"so"'),
        ("pythonic", "'say \"so\" it\\'s'", 'say "so" it\'s'),
        ("pythonic", "[1,2, True, None, false]", [1, 2, True, None, False]),
        ("pythonic", "{'k': 1, \"m\":[]}", {"k": 1, "m": []}),
    ],
)
def test_what_models_write(parser: str, written: str, value: object) -> None:
    text = f"<|tool_call>call:f{{a:{written}}}<tool_call|>" if parser == "gemma4" else f"[f(a={written})]"
    answer = TaggedAnswer(tag_of(parser, arguments(True)), ())
    assert answer.says(text) and answer.may_end()
    assert read(parser, text, arguments(True)) == {"a": value}


def test_properties_of_gemma_come_in_the_order_of_the_alphabet() -> None:
    """So its template writes them, and one that is left out is left out for good."""
    parameters = {"type": "object", "properties": {name: {"type": "integer"} for name in ("c", "B", "a")}}
    for text, fits in (("a:1,B:2,c:3", True), ("B:2,c:3", True), ("c:3,B:2", False), ("c:3,a:1", False)):
        assert TaggedAnswer(tag_of("gemma4", parameters), ()).says(f"<|tool_call>call:f{{{text}}}<tool_call|>") is fits
    for text, fits in (("c=1, B=2, a=3", True), ("a=3, B=2", False)):
        assert TaggedAnswer(tag_of("pythonic", parameters), ()).says(f"[f({text})]") is fits


@pytest.mark.parametrize("name", ["my-city", "1st", "größe", "a b", ""])
def test_a_parameter_that_python_cannot_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"its parameter '.*' has a name that"):
        tag_of("pythonic", {"properties": {name: {}}})
    tag = {"type": "json_schema", "json_schema": {"properties": {name: {}}}, "style": "python"}
    spec = GrammarSpec("structural_tag", json.dumps({"type": "structural_tag", "format": tag}))
    with pytest.raises(GrammarError, match="cannot be written in Python"):
        backend_named("xgrammar").compile(spec)
    assert TaggedAnswer(tag_of("pythonic", {"properties": {"class": {}, "_x1": {}}}), ()).says("[f(class=1, _x1=2)]")


def test_a_property_that_contains_the_quotes_of_gemma() -> None:
    spec = GrammarSpec("structural_tag", tag_of("gemma4", {"properties": {'a<|"|>': {}}}))
    with pytest.raises(GrammarError, match="cannot be written in the syntax of Gemma 4"):
        backend_named("xgrammar").compile(spec)
    other = GrammarSpec("structural_tag", tag_of("gemma4", arguments({"enum": ['a<|"|>']})))
    with pytest.raises(GrammarError, match="no value satisfies"):
        backend_named("xgrammar").compile(other)


def test_arguments_that_are_no_object() -> None:
    spec = GrammarSpec("structural_tag", tag_of("pythonic", {"const": {"a": 1}}))
    with pytest.raises(GrammarError, match="no value satisfies"):
        backend_named("xgrammar").compile(spec)
