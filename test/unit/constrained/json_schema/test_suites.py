"""Public tests of JSON schema, held against every grammar library: no finished answer is invalid."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.grammar_bombs import two_ways
from fixtures.grammar_walk import VOCABULARY, backend_named, compiled
from fixtures.schema_suites import Case, judge, official_cases, takes, walk
from mysglang.srt.constrained.backend import GrammarBackend, GrammarError, JsonStyle
from mysglang.srt.constrained.json_schema.expressions import one_regex
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.sampling.grammar_spec import GrammarSpec

pytestmark = pytest.mark.promise(48)

LIBRARIES = {"xgrammar": "xgrammar", "llguidance": "llguidance", "outlines": "outlines_core"}
DRAWN = 30
SLOW_AT_ONCE = ("Unicode property", "bignum", "float overflow")


@pytest.fixture(scope="module", params=LIBRARIES)
def backend(request: pytest.FixtureRequest) -> Iterator[GrammarBackend]:
    pytest.importorskip(LIBRARIES[request.param])
    yield backend_named(request.param, JsonStyle())


def drawn() -> list[Case]:
    """The same cases for every backend, so that they can be compared."""
    cases = [case for case in official_cases() if not any(slow in case.name for slow in SLOW_AT_ONCE)]
    return random.Random(48).sample(cases, DRAWN)


def test_no_finished_answer_is_invalid(backend: GrammarBackend) -> None:
    """Nothing that ends is wrong, no answer gets stuck, and no instance that the suite calls invalid can be said."""
    ended = accepted = 0
    for case in drawn():
        found = judge(backend, case, walks=2, seconds=60)
        if "refused" not in found:
            assert not found["wrong"] and not found["stuck"] and not found["said_yes"], (case, found)
            ended, accepted = ended + found["ended"], accepted + 1
    assert accepted > DRAWN * 0.7 and ended > accepted


HARD: list[dict[str, Any]] = [
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}}]},
    {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 30},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5, "multipleOf": 0.05},
    {"type": "string", "pattern": '^["\\\\]+$', "maxLength": 3},
    {"type": "string", "not": {"enum": ["a", "b"]}, "maxLength": 2},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxContains": 1, "maxItems": 3},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {"type": "null"}}},
    {"type": "object", "propertyNames": {"pattern": "^x[0-9]$"}, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^n": {"type": "null"}}, "additionalProperties": False},
    {
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "null"}}}],
        "properties": {"b": {"type": "null"}},
        "unevaluatedProperties": False,
    },
    {"oneOf": [{"type": "integer", "maximum": 9}, {"type": "integer", "minimum": 5, "maximum": 20}]},
    {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": ["integer", "string"]}},
        "required": ["kind", "size"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"properties": {"size": {"type": "integer"}}},
        "else": {"properties": {"size": {"maxLength": 2}}},
    },
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}},
    {
        "type": "object",
        "properties": {"value": {"enum": [1, 2]}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "minProperties": 1, "maxProperties": 2},
    {"type": "array", "items": {"enum": [*range(20)]}, "uniqueItems": True, "minItems": 2, "maxItems": 4},
    {
        "oneOf": [
            {"type": "integer", "maximum": 9, "minimum": 0},
            {"type": ["integer", "null"], "not": {"multipleOf": 3}},
        ]
    },
    {"oneOf": [{"type": "array", "items": {"enum": [1]}, "maxItems": 2}, {"not": {"uniqueItems": True}}]},
    {"enum": [[4, 4], [4], [3, 3]], "contains": {"not": {"multipleOf": 3}}, "minContains": 0, "maxContains": 1},
]


@pytest.mark.parametrize("schema", HARD, ids=lambda schema: json.dumps(schema)[:60])
def test_keywords_that_libraries_leave_out_are_held_to(backend: GrammarBackend, schema: dict[str, Any]) -> None:
    found = judge(backend, Case("hard", schema, (), ()), walks=12, seconds=60)
    assert found["ended"] > 3 and not found["wrong"] and not found["stuck"], found


REFUSED = [
    ({"properties": {"a": {"uniqueItems": True, "type": "array"}}}, "'uniqueItems' at #/properties/a"),
    ({"$ref": "https://example.com/schema"}, "'$ref' at # leads out of the schema"),
    ({"items": {"$dynamicRef": "#x"}}, "'$dynamicRef' at #/items"),
    ({"items": {"pattern": r"(a)\1"}}, "'pattern' at #/items"),
    ({"anyOf": [{"type": "string"}, {"type": "nonsense"}]}, "'type' at #/anyOf/1"),
    ({"minLength": -1}, "'minLength' at #"),
    ({"$ref": "#/$defs/nowhere"}, "'$ref' at # leads nowhere"),
    ({"multipleOf": 99991}, "'multipleOf' at #"),
    (
        {"type": "object", "minProperties": 2},
        "two properties that 'minProperties' requires and the schema does not name",
    ),
    ({"allOf": [{"$ref": "#"}]}, "'$ref' at # comes back to itself"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=str)
def test_what_cannot_be_held_to_is_refused_with_its_keyword(
    backend: GrammarBackend, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarError) as refused:
        backend.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert reason in str(refused.value)


@pytest.mark.parametrize("value", [4, [1, 1]], ids=str)
def test_what_is_in_two_options_is_not_taken_where_one_of_them_is_not_known_in_full(
    backend: GrammarBackend, value: Any
) -> None:
    """No grammar says "no multiple of 3" or "with doubles"; still, what these take is not free for the other option."""
    bounded = {"type": ["integer", "array"], "minimum": 0, "maximum": 9, "items": {"enum": [1]}, "maxItems": 2}
    contrary = {"multipleOf": 3} if value == 4 else {"uniqueItems": True}
    grammar = compiled(backend, "json_schema", json.dumps({"oneOf": [bounded, {"not": contrary}]}))
    assert not takes(grammar, value)


def combinations() -> Iterator[tuple[str, dict[str, Any], int]]:
    """Name, schema, and the KiB of its grammar as xgrammar hands it over, rounded up."""
    yield "anyOf in anyOf", json.loads(two_ways(20, "anyOf")), 1000
    same: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        same = {"anyOf": [{"properties": {name: same}, "required": [name]} for name in "ab"], "type": "object"}
    yield "the same subschema many times", same, 200
    kinds = [{"properties": {f"v{i}": {"type": "null"}}, "required": [f"v{i}"]} for i in range(20)]
    yield "oneOf of objects with names of their own", {"type": "object", "oneOf": kinds}, 150
    conditions = [{"if": {"properties": {"k": {"const": i}}}, "then": kinds[i]} for i in range(20)]
    yield (
        "if in allOf",
        {"type": "object", "properties": {"k": {"enum": [*range(20)]}}, "required": ["k"], "allOf": conditions},
        500,
    )
    yield "many optional properties", {"type": "object", "properties": {f"p{i}": {} for i in range(60)}}, 4000


@pytest.mark.parametrize(("schema", "most"), [pytest.param(*rest, id=name) for name, *rest in combinations()])
def test_nested_choices_stay_small(schema: dict[str, Any], most: int) -> None:
    """The size of the grammar grows with the rules times the text of all, and so does the time to compile."""
    pytest.importorskip("xgrammar")
    assert (
        len(backend_named("xgrammar", JsonStyle()).compile(GrammarSpec("json_schema", json.dumps(schema)))) < most << 10
    )


def test_optional_properties_do_not_double_a_regular_expression() -> None:
    pytest.importorskip("outlines_core")
    sizes = []
    for count in (6, 12):
        schema = {"type": "object", "properties": {f"p{i:02}": {"type": "null"} for i in range(count)}}
        sizes.append(len(one_regex(grammar_of(json.dumps(schema)), JsonStyle())))
    assert sizes[1] < 5 * sizes[0]


def bombs() -> Iterator[dict[str, Any]]:
    """Schemas of some KiB that would have millions of combinations."""
    yield {
        "type": "object",
        "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)],
    }
    yield {"allOf": [{"dependentRequired": {f"a{i}": [f"b{i}"]}} for i in range(200)], "type": "object"}
    doubling = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(60)}
    yield {"$ref": "#/$defs/d0", "$defs": doubling | {"d60": {"oneOf": [{"minimum": i} for i in range(400)]}}}
    yield {"properties": {f"p{i}": {} for i in range(400)}, "minProperties": 200, "type": "object"}


@pytest.mark.parametrize("schema", list(bombs()), ids=lambda schema: ",".join(schema))
def test_a_bomb_is_refused(schema: dict[str, Any]) -> None:
    """The counts of its keywords decide, before any library sees it."""
    with pytest.raises(GrammarError, match=r"'\w+'"):
        backend_named("xgrammar").compile(GrammarSpec("json_schema", json.dumps(schema)))


def byte_tokens(data: bytes) -> list[int]:
    """`data` token by token, each of one byte."""
    return [VOCABULARY.pieces.index(bytes([byte])) for byte in data]


ILL_FORMED = [b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xff"]


@pytest.mark.parametrize("data", ILL_FORMED, ids=bytes.hex)
@pytest.mark.parametrize("kind", ["json_schema", "regex"])
def test_no_answer_is_ill_formed_utf8(backend: GrammarBackend, kind: Any, data: bytes) -> None:
    grammar = compiled(backend, kind, '{"type": "string"}' if kind == "json_schema" else '"[^a]*"')
    matcher = grammar.matcher()
    assert not all(map(matcher.accept, byte_tokens(b'"' + data + b'"')))


def test_characters_beside_the_forbidden_ones_can_be_said(backend: GrammarBackend) -> None:
    grammar = compiled(backend, "json_schema", '{"type": "string"}')
    for value in ("\ud7ff", "\ue000", "ࠀ", "𐀀", "\U0010ffff"):
        matcher = grammar.matcher()
        assert all(map(matcher.accept, byte_tokens(json.dumps(value, ensure_ascii=False).encode()))), value
        matcher.rollback(2)
        assert all(map(matcher.accept, byte_tokens(value.encode()[-1:] + b'"'))), value


def test_usual_schemas_are_taken() -> None:
    """Schemas as pydantic writes them, and as OpenAI's strict mode asks for."""
    address = {
        "type": "object",
        "title": "Address",
        "properties": {"street": {"type": "string"}},
        "required": ["street"],
    }
    schema = {
        "$defs": {"Address": address, "Colour": {"enum": ["red", "blue"], "title": "Colour", "type": "string"}},
        "type": "object",
        "properties": {
            "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Name"},
            "colour": {"$ref": "#/$defs/Colour", "description": "of the door", "default": "red"},
            "home": {"$ref": "#/$defs/Address"},
            "kind": {"const": "house", "type": "string"},
        },
        "required": ["name", "home", "kind"],
    }
    value = {"name": "x", "colour": "blue", "home": {"street": "y"}, "kind": "house"}
    for name, library in LIBRARIES.items():
        pytest.importorskip(library)
        backend = backend_named(name, JsonStyle())
        grammar = compiled(backend, "json_schema", json.dumps(schema))
        assert takes(grammar, value)
        assert not takes(grammar, {**value, "extra": 1})
        text = walk(backend, grammar.matcher(), random.Random(0), hurry=True)
        assert text is not None and json.loads(text)["kind"] == "house"
