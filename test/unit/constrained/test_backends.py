"""Every grammar library by the same tests: what is allowed leads to valid answers, and to nothing else."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.grammar_walk import EOS, TOKENIZER, VOCABULARY, WORDS, allowed, backend_named, compiled, walk
from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, GrammarError, JsonStyle, compile_shares
from mysglang.srt.constrained.compile_process import try_out
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.json_schema.ebnf import ebnf
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.sampling.grammar_spec import ANY_JSON, GrammarKind, GrammarSpec
from mysglang.srt.utils.schema_words import FORMATS

NAMES = ("xgrammar", "llguidance", "outlines")
LIBRARIES = {"xgrammar": "xgrammar", "llguidance": "llguidance", "outlines": "outlines_core"}

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["zip"],
        },
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
}
TAGS: dict[str, Any] = {
    "structures": [{"begin": "<call=f>", "schema": {"type": "object"}, "end": "</call>"}],
    "triggers": ["<call="],
}


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest) -> Iterator[GrammarBackend]:
    pytest.importorskip(LIBRARIES[request.param])
    yield backend_named(request.param)


@pytest.fixture(scope="module", params=NAMES[:2])
def rich_backend(request: pytest.FixtureRequest) -> Iterator[GrammarBackend]:
    """One that knows all kinds of grammar."""
    pytest.importorskip(LIBRARIES[request.param])
    yield backend_named(request.param)


def assert_is(value: Any, schema: dict[str, Any]) -> None:
    """The parts of JSON schema that these tests use."""
    if "enum" in schema:
        assert value in schema["enum"]
        return
    match schema["type"]:
        case "object":
            assert isinstance(value, dict)
            assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"])
            for name, item in value.items():
                assert_is(item, schema["properties"][name])
        case "array":
            assert isinstance(value, list)
            for item in value:
                assert_is(item, schema["items"])
        case "string":
            assert isinstance(value, str)
            assert re.search(schema.get("pattern", ""), value)
        case "integer":
            assert type(value) is int
        case "boolean":
            assert type(value) is bool
        case "null":
            assert value is None


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.sampled_from(["string", "integer", "boolean", "null"]).map(lambda kind: {"type": kind})
    enums = st.lists(st.text('abc é"\\{', max_size=5), min_size=1, max_size=3, unique=True).map(lambda v: {"enum": v})

    def grow(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        arrays = inner.map(lambda item: {"type": "array", "items": item})
        names = st.text("abxyz_", min_size=1, max_size=6)
        properties = st.dictionaries(names, inner, min_size=1, max_size=3)
        objects = properties.flatmap(
            lambda items: st.sets(st.sampled_from(sorted(items))).map(
                lambda required: {
                    "type": "object",
                    "properties": items,
                    "required": sorted(required),
                    "additionalProperties": False,
                }
            )
        )
        return arrays | objects

    return st.recursive(leaves | enums, grow, max_leaves=5)


@given(schema=schemas(), seed=st.integers(0, 1000))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_drawn_is_valid(backend: GrammarBackend, schema: dict[str, Any], seed: int) -> None:
    matcher = compiled(backend, "json_schema", json.dumps(schema)).matcher()
    assert_is(json.loads(walk(backend, matcher, random.Random(seed))), schema)


STRINGS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 6},
    {"type": ["string", "null"], "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^.{1,5}$"},
    {"type": "string", "pattern": "^[^a]{4}$"},
    {"type": "string", "minLength": 2, "maxLength": 200},
    {"type": "string", "minLength": 30, "maxLength": 40},
    {"type": "string", "minLength": 12},
    {"type": "string", "pattern": "^[a\n]{1,5}$"},
    {"type": "string", "pattern": "^[\x00\n]{2,3}$"},
    {"type": "string", "pattern": "^.{3,}$"},
]


def test_a_constant_beside_a_bounded_string() -> None:
    schema = {"type": "object", "properties": {"éa": {"enum": ["京b🗼c"]}, "s": {"type": "string", "maxLength": 3}}}
    schema |= {"required": ["éa", "s"], "additionalProperties": False}
    backend = backend_named("xgrammar")
    grammar = compiled(backend, "json_schema", json.dumps(schema))
    value = json.loads(walk(backend, grammar.matcher(), random.Random(1), free=8))
    assert value["éa"] == "京b🗼c" and len(value["s"]) <= 3


@pytest.mark.parametrize("schema", STRINGS, ids=str)
def test_a_bounded_string_is_json(schema: dict[str, Any]) -> None:
    backend = backend_named("xgrammar")
    grammar = compiled(backend, "json_schema", json.dumps(schema))
    for seed in range(60):
        value = json.loads(walk(backend, grammar.matcher(), random.Random(seed), free=8))
        assert value is None or schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 100)
        assert value is None or re.search(schema.get("pattern", ""), value)


def test_a_bounded_string_is_fast_with_a_large_vocabulary() -> None:
    """A grammar of which each mask tries out every token is refused as too ambiguous."""
    words = [piece for piece in VOCABULARY.pieces if piece.isalnum()][:400]
    vocabulary = Vocabulary([*VOCABULARY.pieces, *(one + other for one in words for other in words)], (EOS,))
    backend = make_backend("xgrammar", vocabulary, JsonStyle())
    spec = GrammarSpec("json_schema", '{"type": "string", "minLength": 1}')
    try_out(backend, spec, backend.compile(spec), vocabulary.size)
    for text in ('{"type": "string", "maxLength": 100}', '{"type": "string", "pattern": "^.{1,100}$"}'):
        assert "{" not in ebnf(grammar_of(text), JsonStyle())


def test_threads_change_nothing() -> None:
    assert [compile_shares(cores) for cores in (1, 8, 16, 64)] == [(2, 1), (4, 1), (4, 3), (4, 15)]
    spec = GrammarSpec("json_schema", json.dumps({"type": "object", "properties": {"a": {"maxLength": 30}}}))
    backend = backend_named("xgrammar")
    assert backend.compile(spec, 3) == backend.compile(spec)


@pytest.mark.parametrize("seed", range(5))
def test_a_schema(backend: GrammarBackend, seed: int) -> None:
    grammar = compiled(backend, "json_schema", json.dumps(PERSON))
    assert grammar.nbytes > 0
    assert_is(json.loads(walk(backend, grammar.matcher(), random.Random(seed))), PERSON)


def test_all_formats_in_one_schema_are_handed_over_in_little() -> None:
    """Long runs of characters are rules that all formats share: written at each place, they made twice as much."""
    backend, formats = backend_named("xgrammar"), {name: {"type": "string", "format": name} for name in FORMATS}
    spec = GrammarSpec("json_schema", json.dumps({"type": "object", "properties": formats, "required": [*FORMATS]}))
    assert ebnf(grammar_of(spec.text), JsonStyle()).count("{1,20}") == 2
    handed_over = backend.compile(spec)
    assert len(handed_over) < 16_000_000
    grammar = backend.load(spec, handed_over)
    values = {
        "date": "2024-02-28",
        "time": "23:59:59.5Z",
        "date-time": "2024-02-28T00:00:00+01:00",
        "duration": "P1Y2M",
        "email": "a.b+c@mail.example-host.org",
        "hostname": f"{'h' * 20}-{'h' * 20}.org",
        "ipv4": "127.0.0.1",
        "ipv6": "fe80::1",
        "uuid": "12345678-1234-1234-1234-123456789abc",
        "uri": "https://example.org:80/a?b#c",
    }
    assert accepted(grammar, values)
    for wrong in ("h" * 21, "-h", "h..h", ""):
        assert not accepted(grammar, values | {"hostname": wrong})
        assert not accepted(grammar, values | {"email": f"a@{wrong}"})


def accepted(grammar: CompiledGrammar, value: dict[str, str]) -> bool:
    """True if the grammar takes the value as an answer."""
    matcher = grammar.matcher()
    return all(matcher.accept(token) for token in [*TOKENIZER.encode(json.dumps(value)), EOS])


@pytest.mark.parametrize("text", [ANY_JSON, '{"type": "object"}'])
def test_any_json(backend: GrammarBackend, text: str) -> None:
    grammar = compiled(backend, "json_schema", text)
    for seed in range(3):
        value = json.loads(walk(backend, grammar.matcher(), random.Random(seed)))
        assert text == ANY_JSON or isinstance(value, dict)


@pytest.mark.parametrize("pattern", ["[a-c]{2,5}x", "(yes|no)", r"\d{3}-\d{4}", "日本|é+", "a*"])
def test_a_regular_expression(backend: GrammarBackend, pattern: str) -> None:
    grammar = compiled(backend, "regex", pattern)
    for seed in range(5):
        assert re.fullmatch(pattern, walk(backend, grammar.matcher(), random.Random(seed), free=3))


def test_ebnf(rich_backend: GrammarBackend) -> None:
    """A language beyond regular expressions: balanced brackets."""
    grammar = compiled(rich_backend, "ebnf", 'root ::= "(" root ")" | "x"')
    for seed in range(5):
        found = re.fullmatch(r"(\(*)x(\)*)", walk(rich_backend, grammar.matcher(), random.Random(seed)))
        assert found is not None and len(found[1]) == len(found[2])


@pytest.mark.parametrize("newer", [False, True])
def test_a_structural_tag(rich_backend: GrammarBackend, newer: bool) -> None:
    """Free text, until a trigger is said; then what the tag demands."""
    (structure,) = TAGS["structures"]
    tag = {
        "type": "tag",
        "begin": structure["begin"],
        "content": {"type": "json_schema", "json_schema": {"type": "object"}},
        "end": "</call>",
    }
    form = {"type": "triggered_tags", "triggers": TAGS["triggers"], "tags": [tag]}
    text = {"type": "structural_tag", "format": form} if newer else TAGS
    matcher = compiled(rich_backend, "structural_tag", json.dumps(text)).matcher()
    for token in TOKENIZER.encode("I call it: <call=", add_special_tokens=False):
        assert matcher.accept(token)
    starts = {VOCABULARY.pieces[token][:1] for token in allowed(rich_backend, matcher)}
    assert starts == {b"f"}
    for token in TOKENIZER.encode('f>{"a": 1}</call> and', add_special_tokens=False):
        assert matcher.accept(token)
    assert EOS in allowed(rich_backend, matcher)


def sharing(shared: Any, *names: object) -> str:
    """A structural tag that calls `<a>` and `<b>` and so on with these shared parts."""
    tags = [
        {"type": "tag", "begin": f"<{letter}>", "content": {"type": "shared", "name": name}, "end": "</>"}
        for letter, name in zip("abc", names, strict=False)
    ]
    form = {"type": "triggered_tags", "triggers": [tag["begin"] for tag in tags], "tags": tags}
    return json.dumps({"format": form, "shared": shared})


def test_parts_that_a_structural_tag_shares(rich_backend: GrammarBackend) -> None:
    """They hold wherever they are named, and what repeats them costs little."""
    number, word = ({"type": "json_schema", "json_schema": {"type": kind}} for kind in ("integer", "boolean"))
    grammar = compiled(rich_backend, "structural_tag", sharing({"n": number, "w": word}, "n", "w", "n"))
    for text, fits in (("<a>1</>", True), ("<a>true</>", False), ("<b>true</>", True), ("<c>12</> <a>3</>", True)):
        matcher = grammar.matcher()
        assert all(map(matcher.accept, TOKENIZER.encode(text, add_special_tokens=False))) is fits
    wide = {"type": "object", "properties": {f"property_{count}": {"type": "string"} for count in range(20)}}
    sizes = [
        len(rich_backend.compile(GrammarSpec("structural_tag", sharing({"w": {**word, "json_schema": wide}}, *names))))
        for names in ("w", "www")
    ]
    assert sizes[1] < 1.5 * sizes[0]


@pytest.mark.parametrize(
    ("shared", "name", "words"),
    [
        ({"n": {"type": "any_text"}}, "m", "there is no shared part named 'm'"),
        ({"n": {"type": "any_text"}}, 5, "there is no shared part named 5"),
        ([], "n", "shared must be an object"),
        ({"n": {"type": "shared", "name": "n"}}, "n", None),
        ({"n": 5}, "n", None),
    ],
)
def test_parts_that_cannot_be_shared(rich_backend: GrammarBackend, shared: Any, name: object, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        rich_backend.compile(GrammarSpec("structural_tag", sharing(shared, name)))


def test_a_schema_that_is_wrong_is_named_by_its_tag(rich_backend: GrammarBackend) -> None:
    wrong = {"type": "json_schema", "json_schema": {"properties": {"a": {"$dynamicRef": "#a"}}}}
    with pytest.raises(GrammarError, match=r"behind '<b>': '\$dynamicRef' at #/properties/a"):
        rich_backend.compile(
            GrammarSpec("structural_tag", sharing({"w": wrong, "n": {**wrong, "json_schema": True}}, "n", "w"))
        )


def test_llguidance_needs_a_tag() -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(GrammarError, match="no tag"):
        backend_named("llguidance").compile(GrammarSpec("structural_tag", sharing({})))


AWKWARD = {
    "type": "object",
    "properties": {
        "é": {"type": "string", "maxLength": 4},
        "dot": {"type": "string", "pattern": "^a.b$"},
        "list": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 3}, "maxItems": 2},
    },
    "required": ["é", "dot", "list"],
    "additionalProperties": False,
}
"""Strings whose grammars xgrammar leaves too wide, and a name that it writes as an escape."""


def said_in_tag(backend: GrammarBackend, content: dict[str, Any], seed: int) -> str:
    """A random text that the content of a tag allows."""
    elements = [{"type": "const_string", "value": "<t>"}, content, {"type": "const_string", "value": "</t>"}]
    form = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    matcher = compiled(backend, "structural_tag", json.dumps(form)).matcher()
    text: str = walk(backend, matcher, random.Random(seed), free=30)
    return text.removeprefix("<t>").removesuffix("</t>")


@pytest.mark.parametrize("any_order", [False, True])
def test_json_in_a_structural_tag_is_json(any_order: bool) -> None:
    """No control character in a string, no quote from a pattern, no more white space than is allowed."""
    backend = backend_named("xgrammar")
    content = {"type": "json_schema", "json_schema": AWKWARD, "any_order": any_order}
    for seed in range(20):
        text = said_in_tag(backend, content, seed)
        # In any order, the library does not ask for all that is required.
        assert json.loads(text).keys() <= {"é", "dot", "list"}
        assert any_order or json.loads(text).keys() == {"é", "dot", "list"}
        assert not re.search(r"\s{3}", text)


def test_json_in_the_markup_of_a_structural_tag_is_json() -> None:
    """A parameter that is a string may hold anything, lines too; JSON in another may not."""
    backend = backend_named("xgrammar")
    inner = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}, "required": ["x"]}
    properties = {"free": {"type": "string", "maxLength": 3}, "held": {**inner, "additionalProperties": False}}
    schema = {"type": "object", "properties": properties, "required": ["free", "held"], "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}
    form = {"type": "structural_tag", "format": content}
    grammar = compiled(backend, "structural_tag", json.dumps(form))
    for held, fits in (('{"x": "ab"}', True), ('{"x": "\t"}', False)):
        matcher = grammar.matcher()
        text = f'<parameter=free>"\n\\</parameter><parameter=held>{held}</parameter>'
        assert all(map(matcher.accept, TOKENIZER.encode(text, add_special_tokens=False))) is fits


def test_a_limit_for_whitespace_does_not_make_a_grammar_large() -> None:
    """A repetition in each place did: a limit of 32 took 80 seconds to compile, and 800 MB."""
    properties = {f"p{number}": {"type": "array", "items": {"type": "string"}} for number in range(8)}
    schema = json.dumps({"type": "object", "properties": properties})
    free, limited = (
        len(backend_named("xgrammar", JsonStyle(max_whitespace=most)).compile(GrammarSpec("json_schema", schema)))
        for most in (None, 32)
    )
    assert limited < 8 * free


@pytest.mark.parametrize("text", [ANY_JSON, '{"type": "object"}'])
def test_any_json_has_as_much_whitespace_as_the_server_allows(text: str, rich_backend: GrammarBackend) -> None:
    for seed in range(10):
        written = walk(rich_backend, compiled(rich_backend, "json_schema", text).matcher(), random.Random(seed))
        outside = re.sub(r'"(\\.|[^"\\])*"', "", written)
        assert not re.search(r"\s{3}", re.sub(r"\{\s{0,4}\}|\[\s{0,4}\]", "", outside))  # twice where nothing is inside


@pytest.mark.parametrize("demanded", [False, True])
def test_a_structural_tag_may_be_demanded(demanded: bool) -> None:
    backend = backend_named("xgrammar")
    matcher = compiled(backend, "structural_tag", json.dumps({**TAGS, "at_least_one": demanded})).matcher()
    assert (EOS in allowed(backend, matcher)) is not demanded


def test_llguidance_says_that_it_cannot_demand_a_structural_tag() -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(GrammarError, match="without options"):
        backend_named("llguidance").compile(GrammarSpec("structural_tag", json.dumps({**TAGS, "at_least_one": True})))


@pytest.mark.parametrize("more", [{"style": "qwen_xml"}, {}])
def test_llguidance_says_that_it_knows_json_only(more: dict[str, str]) -> None:
    pytest.importorskip("llguidance")
    content = {"type": "json_schema", "json_schema": {"type": "object"}, **more}
    tag = {"type": "tag", "begin": "<call=f>", "content": content, "end": "</call>"}
    form = {"type": "triggered_tags", "triggers": ["<call="], "tags": [tag]}
    text = json.dumps({"format": form, "special_tokens": not more})
    with pytest.raises(GrammarError, match="written as JSON" if more else "special_tokens"):
        backend_named("llguidance").compile(GrammarSpec("structural_tag", text))


def test_eos_comes_when_the_answer_may_end_and_alone_when_it_must(backend: GrammarBackend) -> None:
    matcher = compiled(backend, "regex", "ab?").matcher()
    (a,), (b,) = (TOKENIZER.encode(letter, add_special_tokens=False) for letter in "ab")
    assert EOS not in allowed(backend, matcher)
    assert matcher.accept(a)
    assert {b, EOS, EOS + 1} <= set(allowed(backend, matcher))
    assert matcher.accept(b)
    assert allowed(backend, matcher) == [EOS, EOS + 1]
    assert not matcher.finished
    assert matcher.accept(EOS + 1)
    assert matcher.finished


def test_what_is_not_allowed_is_not_accepted(backend: GrammarBackend) -> None:
    grammar = compiled(backend, "regex", "ab")
    (b,) = TOKENIZER.encode("b", add_special_tokens=False)
    for token in (b, EOS):
        assert not grammar.matcher().accept(token)


def test_tokens_are_taken_back(backend: GrammarBackend) -> None:
    matcher = compiled(backend, "regex", "[ab]{2}c").matcher()
    a, b, c = (TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in "abc")
    before = [allowed(backend, matcher)]
    for token in (a, b, c, EOS):
        assert matcher.accept(token)
        before.append([] if matcher.finished else allowed(backend, matcher))
    for count, place in ((1, 3), (2, 1), (1, 0)):
        matcher.rollback(count)
        assert not matcher.finished
        assert allowed(backend, matcher) == before[place]
    assert all(matcher.accept(token) for token in (b, a, c, EOS)) and matcher.finished


def test_answers_do_not_share_their_place(backend: GrammarBackend) -> None:
    grammar = compiled(backend, "regex", "ab")
    first, second = grammar.matcher(), grammar.matcher()
    (a,) = TOKENIZER.encode("a", add_special_tokens=False)
    assert first.accept(a)
    assert a in allowed(backend, second)
    assert a not in allowed(backend, first)


@pytest.mark.parametrize("cores", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_many_masks_at_once_are_those_of_each(name: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with several threads."""
    pytest.importorskip(LIBRARIES[name])
    backend = backend_named(name)
    monkeypatch.setattr(f"mysglang.srt.constrained.{name}_backend.usable_cores", lambda: cores, raising=False)
    grammar = compiled(backend, "json_schema", json.dumps(PERSON))
    rng = random.Random(2)
    matchers = [grammar.matcher() for _ in range(50)]
    for matcher in matchers:
        for _ in range(rng.randrange(12)):
            assert matcher.accept(rng.choice([i for i in allowed(backend, matcher) if i not in VOCABULARY.eos_ids]))
    rows = rng.sample(range(60), 50)
    bits = np.zeros((60, WORDS), dtype=np.int32)
    backend.fill(matchers, bits, rows)
    for matcher, row in zip(matchers, rows, strict=True):
        ids = np.flatnonzero(np.unpackbits(bits[row].view(np.uint8), count=VOCABULARY.size, bitorder="little"))
        assert ids.tolist() == allowed(backend, matcher)
    assert not bits[[row for row in range(60) if row not in rows]].any()


@pytest.mark.parametrize("name", NAMES)
def test_whitespace(name: str) -> None:
    """None, where it is forbidden: then what the layout needs is all there is."""
    pytest.importorskip(LIBRARIES[name])
    backend = backend_named(name, JsonStyle(any_whitespace=False))
    grammar = compiled(backend, "json_schema", '{"type":"array","items":{"type":"integer"}}')
    for seed in range(5):
        text = walk(backend, grammar.matcher(), random.Random(seed), free=8)
        assert not re.search(r"\s\s|[\n\t]", text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("json_schema", '{"type": "nonsense"}'), ("regex", "(a"), ("json_schema", '{"$ref": "#/nowhere"}')],
)
def test_what_is_wrong_is_said(backend: GrammarBackend, kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError, match=r"\w"):
        backend.compile(GrammarSpec(kind, text))


@pytest.mark.parametrize(
    "text", ["{}", '{"format": {"type": "nonsense"}}', '{"structures": [{}], "triggers": []}', '{"format": 3}']
)
def test_a_malformed_structural_tag(rich_backend: GrammarBackend, text: str) -> None:
    with pytest.raises(GrammarError, match=r"\w"):
        rich_backend.compile(GrammarSpec("structural_tag", text))


@pytest.mark.parametrize("kind", ["ebnf", "structural_tag"])
def test_outlines_says_what_it_does_not_know(kind: GrammarKind) -> None:
    pytest.importorskip("outlines_core")
    with pytest.raises(GrammarError, match=f"does not know {kind}"):
        backend_named("outlines").compile(GrammarSpec(kind, json.dumps(TAGS)))
