"""Grammars as clients write them: one at most, of bounded size, well-formed; what is wrong is named."""

import pytest

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.grammar_spec import ANY_JSON, MAX_GRAMMAR_BYTES, GrammarSpec
from mysglang.srt.sampling.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("params", "spec"),
    [
        ({}, None),
        ({"json_schema": '{"type": "object"}'}, GrammarSpec("json_schema", '{"type": "object"}')),
        ({"json_schema": "true"}, GrammarSpec("json_schema", "true")),
        ({"json_schema": ANY_JSON}, GrammarSpec("json_schema", ANY_JSON)),
        ({"regex": "[a-z]+"}, GrammarSpec("regex", "[a-z]+")),
        ({"ebnf": 'root ::= "a"'}, GrammarSpec("ebnf", 'root ::= "a"')),
        ({"structural_tag": '{"format": {}}'}, GrammarSpec("structural_tag", '{"format": {}}')),
    ],
)
def test_what_is_taken(params: dict[str, str], spec: GrammarSpec | None) -> None:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    sampling.verify(100)
    assert sampling.grammar == spec


@pytest.mark.parametrize(
    ("params", "param", "words"),
    [
        ({"regex": "a", "ebnf": "b"}, "ebnf", "Only one of regex and ebnf may be given."),
        ({"json_schema": "{"}, "json_schema", "json_schema is not valid JSON"),
        ({"json_schema": "[1]"}, "json_schema", "json_schema must be a JSON object."),
        ({"json_schema": "\ud800"}, "json_schema", "json_schema is not valid JSON"),
        ({"json_schema": "[" * 100_000}, "json_schema", "json_schema is nested too deeply."),
        ({"structural_tag": "true"}, "structural_tag", "structural_tag must be a JSON object."),
        ({"structural_tag": ANY_JSON}, "structural_tag", "structural_tag is not valid JSON"),
        ({"regex": ""}, "regex", f"regex must have 1 to {MAX_GRAMMAR_BYTES} bytes, got 0."),
        ({"regex": "x" * (MAX_GRAMMAR_BYTES + 1)}, "regex", f"regex must have 1 to {MAX_GRAMMAR_BYTES} bytes"),
        ({"ebnf": "\u20ac" * (MAX_GRAMMAR_BYTES // 2)}, "ebnf", f"ebnf must have 1 to {MAX_GRAMMAR_BYTES} bytes"),
    ],
)
def test_what_is_refused(params: dict[str, str], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**params).verify(100)  # type: ignore[arg-type]
    assert caught.value.param == param
    assert str(caught.value).startswith(words)
