"""Grammars of clients: every class has the characters that it names, and nothing ends a grammar early."""

from __future__ import annotations

import json

import pytest

from fixtures.grammar_walk import EOS, VOCABULARY, backend_named, compiled
from mysglang.srt.constrained.backend import CompiledGrammar, GrammarError
from mysglang.srt.constrained.client_ebnf import enforceable
from mysglang.srt.sampling.grammar_spec import GrammarSpec

pytest.importorskip("xgrammar")

BYTES = {piece[0]: token for token, piece in enumerate(VOCABULARY.pieces) if len(piece) == 1}


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """True if the grammar takes the text as an answer, byte by byte."""
    matcher = grammar.matcher()
    return all(matcher.accept(BYTES[byte]) for byte in text.encode()) and matcher.accept(EOS)


CHARACTERS = "\x00\t\n -]^aZz\x7f\x80àéïÿĀ京\uffff🗼\U0010ffff"
CLASSES = [
    ("[^é]", "é"),
    (r"[^\u00e9\u4eac]", "é京"),
    (r"[^\xe9]", "é"),
    (r"[^\U0001f5fca]", "🗼a"),
    (r"[^a-\u00ef]", [*map(chr, range(0x61, 0xF0))]),
    (r"[^\0-\x7f]", [*map(chr, range(0x80))]),
    (r"[^\u0000-\uffff]", [*map(chr, range(0x10000))]),
    (r"[^]é]", None),
    (r"[^\]é^]", "]é^"),
    ("[^-é]", "-é"),
    ("[^é-]", "-é"),
    (r"[^\-é]", "-é"),
    (r"[^ --é]", [*map(chr, range(0x20, 0x2E)), "é"]),
    (r"[^\n\t\u4eac]", "\n\t京"),
    ("[^a]", "a"),
    (r'[^"é#\\]', '"é#\\'),
]


@pytest.mark.parametrize(("negated", "left_out"), CLASSES, ids=[text for text, _ in CLASSES])
def test_a_negated_class_leaves_out_what_it_says(negated: str, left_out: str | list[str] | None) -> None:
    if left_out is None:  # the first bracket ends it, as xgrammar reads it
        assert enforceable(f'root ::= {negated} "x"') == f'root ::= {negated} "x"'
        return
    grammar = compiled(backend_named("xgrammar"), "ebnf", f"root ::= {negated}")
    for character in {*CHARACTERS, *left_out[:300]} - {*map(chr, range(0xD800, 0xE000))}:
        assert accepts(grammar, character) is (character not in left_out), repr(character)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "[^é]" # [^é]',
        r'root ::= "\"[^é]"',
        "root ::= [a^é]",
        r"root ::= [\[^é]",
        "root ::= [^a-z]",
        r"root ::= [^é\q]",
        r"root ::= [^\ué]",
        "root ::= [^é-a]",
        "root ::= [^é",
    ],
)
def test_nothing_else_is_changed(text: str) -> None:
    """A malformed class stays so, and the library refuses it."""
    assert enforceable(text) == text


def test_texts_and_comments_do_not_hide_a_class() -> None:
    grammar = compiled(backend_named("xgrammar"), "ebnf", 'root ::= "\\"[" # "\n  [^é] "#" [^京]')
    assert accepts(grammar, '"[a#é')
    assert not accepts(grammar, '"[é#a') and not accepts(grammar, '"[a#京')


@pytest.mark.parametrize(
    ("text", "words"),
    [('root ::= "a\x00b"', r"U\+0000"), ('root ::= "a"\x00junk', r"U\+0000"), (r"root ::= [^\0-\U0010ffff]", "every")],
)
def test_what_cannot_be_enforced_is_refused(text: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        backend_named("xgrammar").compile(GrammarSpec("ebnf", text))


def test_an_escaped_nul_is_a_character() -> None:
    grammar = compiled(backend_named("xgrammar"), "ebnf", r'root ::= "a\u0000b"')
    assert accepts(grammar, "a\x00b") and not accepts(grammar, "a") and not accepts(grammar, "ab")


MARKUP = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[^é]$"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ({"type": "grammar", "grammar": "root ::= [^é]"}, "京", "é"),
        (
            {"type": "json_schema", "json_schema": MARKUP, "style": "qwen_xml"},
            "<parameter=x>a</parameter>",
            "<parameter=x>é</parameter>",
        ),
    ],
)
def test_classes_in_structural_tags(part: dict[str, object], good: str, bad: str) -> None:
    text = json.dumps({"type": "structural_tag", "format": part})
    grammar = compiled(backend_named("xgrammar"), "structural_tag", text)
    assert accepts(grammar, good) and not accepts(grammar, bad)
