"""Structural tags whose parts share rules: each part keeps to its own grammar, and parts that are alike cost little."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.grammar_walk import EOS, TOKENIZER, VOCABULARY, allowed, backend_named
from fixtures.tagged_answers import TaggedAnswer
from mysglang.srt.constrained.backend import GrammarError, JsonStyle
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.constrained.json_schema.joined import JoinedGrammars
from mysglang.srt.sampling.grammar_spec import GrammarSpec


def part(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def tag_of(parts: dict[str, dict[str, Any]]) -> str:
    """A structural tag in which `<name>` begins the part of this name."""
    tags = [{"type": "tag", "begin": f"<{name}>", "content": inner, "end": "</>"} for name, inner in parts.items()]
    form = {"type": "triggered_tags", "triggers": [tag["begin"] for tag in tags], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": form})


def tool(number: int) -> dict[str, Any]:
    """The arguments of a function, which has one property of its own."""
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "unit": {"enum": ["C", "F"]},
        "where": {"type": "object", "properties": {"x": {"type": "number"}, "tags": {"type": "array"}}},
        f"own_{number}": {"type": "string", "pattern": "^[a-z]{2,9}$"},
    }
    return {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}


def test_a_function_more_is_a_rule_more() -> None:
    counts = []
    for functions in (1, 2, 20):
        joined = JoinedGrammars(JsonStyle(max_whitespace=2), "p_")
        names = {joined.add(grammar_of(json.dumps(tool(number)))) for number in range(functions)}
        assert len(names) == functions
        assert joined.add(grammar_of(json.dumps(tool(0)))) in names
        counts.append(len(joined.text().splitlines()))
    assert counts == [counts[0], counts[0] + 1, counts[0] + 19]


def test_many_functions_compile_to_little() -> None:
    """With rules of their own they were 490 times as long."""
    backend = backend_named("xgrammar")
    one, many = (
        len(backend.compile(GrammarSpec("structural_tag", tag_of({f"f{n}": part(tool(n)) for n in range(functions)}))))
        for functions in (1, 24)
    )
    assert many < 32 * one


def test_each_part_keeps_to_its_own_schema() -> None:
    tag = tag_of({f"f{number}": part(tool(number)) for number in range(3)})
    for number in range(3):
        for own in range(3):
            answer = TaggedAnswer(tag, ())
            assert answer.says(f'So: <f{number}>{{"city": "Köln", "days": 3')
            assert answer.says(f', "own_{own}": "ab"}}</> and') is (own == number)


def tree(letter: str) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"name": {"enum": [letter]}, "more": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["name"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}


def test_schemas_that_contain_themselves() -> None:
    tag = tag_of({"a": part(tree("a")), "b": part(tree("b")), "plain": part({"enum": ["a"]})})
    for own, other in ("ab", "ba"):
        deep = f'<{own}>{{"name": "{own}", "more": [{{"name": "{own}", "more": []}}, {{"name": "'
        answer = TaggedAnswer(tag, ())
        assert answer.says(deep)
        assert not answer.says(other)
        assert answer.says(f'{own}"}}]}}</>') and answer.may_end()


def test_rules_of_a_clients_own_grammar_keep_their_names() -> None:
    """They may have the names of rules for JSON, and of those in which parts are joined."""
    grammar = 'root ::= part_of_1 string space0\npart_of_1 ::= "1"\nstring ::= "2"\nspace0 ::= "3"\npart_of_2 ::= "4"\n'
    parts = {
        "own": {"type": "grammar", "grammar": grammar},
        "json": part({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
        "text": {"type": "const_string", "value": '"part_of_1"'},
        "word": {"type": "regex", "pattern": "part_of_[0-9]"},
    }
    tag = tag_of(parts)
    for text, wrong in (
        ("<own>123</>", "<own>12 "),
        ('<json>{"a": "b"}</>', "<json>123"),
        ('<text>"part_of_1"</>', "<text>1"),
        ("<word>part_of_2</>", "<word>4"),
    ):
        assert TaggedAnswer(tag, ()).says(text), text
        assert not TaggedAnswer(tag, ()).says(wrong), wrong


@pytest.mark.parametrize("name", ["éa0", "｜f｜", "\\x41", 'a"b', "a\nb"])
def test_texts_around_parts_stay_as_they_are(name: str) -> None:
    answer = TaggedAnswer(tag_of({name: part({"type": "integer"}), "other": part({"type": "null"})}), ())
    assert answer.says(f"é <{name}>") and not answer.says("null")
    assert answer.says("12</> é") and answer.may_end()
    assert answer.says("<other>null</>")


FIRST, SECOND = TOKENIZER.encode("the end", add_special_tokens=False)[:2]


@pytest.mark.parametrize("by_text", [False, True])
def test_tokens(by_text: bool) -> None:
    first, second = (VOCABULARY.pieces[token].decode() if by_text else token for token in (FIRST, SECOND))
    elements = [
        {"type": "token", "token": first},
        {"type": "const_string", "value": "12"},
        {"type": "exclude_token", "exclude_tokens": [first, second]},
        {"type": "token_dispatch", "rules": [[second, part({"type": "boolean"})]], "exclude_tokens": [first]},
    ]
    tag = json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
    backend = backend_named("xgrammar")
    matcher = backend.load(spec := GrammarSpec("structural_tag", tag), backend.compile(spec)).matcher()
    assert allowed(backend, matcher) == [FIRST]
    for token in (FIRST, *TOKENIZER.encode("12", add_special_tokens=False)):
        assert matcher.accept(token)
    assert not matcher.accept(FIRST) and not matcher.accept(SECOND)
    (letter,) = TOKENIZER.encode("x", add_special_tokens=False)
    assert matcher.accept(letter)
    assert FIRST not in allowed(backend, matcher) and EOS in allowed(backend, matcher)
    assert matcher.accept(SECOND)
    assert {VOCABULARY.pieces[token][:1] for token in allowed(backend, matcher)} == {b"t", b"f"}


def test_a_token_that_there_is_not() -> None:
    for inner in ({"type": "token", "token": "no such token"}, {"type": "any_tokens", "exclude_tokens": ["<none>"]}):
        tag = json.dumps({"type": "structural_tag", "format": inner})
        with pytest.raises(GrammarError, match=r"no token is the text '(no such token|<none>)'"):
            backend_named("xgrammar").compile(GrammarSpec("structural_tag", tag))
