"""Regexes of clients, as each library enforces them, against Python's `re` on short texts of difficult characters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache

import pytest

from fixtures.grammar_walk import EOS, VOCABULARY, backend_named, compiled
from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, GrammarError
from mysglang.srt.constrained.client_regex import MAX_COUNT
from mysglang.srt.entrypoints.openai.response_format import choice_regex
from mysglang.srt.sampling.grammar_spec import GrammarSpec

LIBRARIES = {"xgrammar": "xgrammar", "llguidance": "llguidance", "outlines": "outlines_core"}
BYTES = {piece[0]: token for token, piece in enumerate(VOCABULARY.pieces) if len(piece) == 1}

LETTERS = "ab1. \n\x00é京🗼"
TEXTS = ["".join(text) for length in range(4) for text in itertools.product(LETTERS, repeat=length)]

PATTERNS = [
    *("[^é]{2}", "[^a-é]", "[^é京]*", r"[^\u00e9]", r"[^\x00]b?", "a\x00b", "\x00", r"\0", r"a\x00?", "[\x00a]+"),
    *("^a$", r"\Aa\Z", "^a|b$", "(^a|1$)", "(?:^|a)b", "a$|b", "(a|b$)a", "(a$b|1)", "^^a", "a$$", "(^a)?b"),
    *("^$", "()", "(|a)", "a||b", "((a|)b?)*", "(a?)*", "(a*)*b", "(a*b*)+", "a{2}", "a{0,2}b", "a{2,}", "a{0}b"),
    *(".", ".{2}", "a.b", ".*b", r"\d", r"\d+\.1", r"\D", r"\w", r"\w*", r"[\w.]+", r"[\d\w]", r"\s", r"a\sb", r"[\s]"),
    *(r"[^\s]", r"\S", r"[\s\S]", r"[\S\s]{3}", r"[\d\D]", r"[^\w]", r"[^\d]a", r"[a-b]+?", "a??b", "(?:a|b)1", "a*?"),
    *(
        "(?P<x>a)b",
        "(?P<_1>a)",
        "(?:(?:a)b)*",
        r"\.\ ",
        r"[.]",
        r"[\]a]",
        r"[a\-b]",
        "[a-]",
        "[-a]",
        r"\n",
        "\n",
        r"\x61",
    ),
    *(
        r"\u4eac",
        r"\U0001f5fc",
        r"[\u4e00-\u9fff]",
        "[à-ÿ]",
        "é+|京",
        "(é|京){2}",
        "a{",
        "{a}",
        "a}",
        "a]",
        "a{b}",
        "a{1",
    ),
    *("(?=a).b", "(?!a)..", "a(?=b)b", "a(?!b).*", "(?!.*b)[ab1]*", "(?=.*a)(?=.*b).*", "(a(?=b)|b)b*", "(?!^a)a|b"),
]
"""Read alike by Python, with \\d, \\w and \\s of ASCII, as ECMA-262 has the first two."""


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """True if the grammar takes the text as an answer, byte by byte."""
    matcher = grammar.matcher()
    return all(matcher.accept(BYTES[byte]) for byte in text.encode()) and matcher.accept(EOS)


def taken(grammar: CompiledGrammar, texts: Iterable[str]) -> set[str]:
    """Texts that the grammar takes as answers. After a beginning that it refused, nothing is tried."""
    found, dead = set(), set()
    for text in texts:
        data = text.encode()
        beginnings = [data[: end + 1] for end in range(len(data))]
        if not dead.isdisjoint(beginnings):
            continue
        matcher = grammar.matcher()
        refused = next((beginning for beginning in beginnings if not matcher.accept(BYTES[beginning[-1]])), None)
        if refused is not None:
            dead.add(refused)
        elif matcher.accept(EOS):
            found.add(text)
    return found


@cache
def library(name: str) -> GrammarBackend:
    pytest.importorskip(LIBRARIES[name])
    return backend_named(name)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_answer_is_what_python_matches(pattern: str) -> None:
    grammar = compiled(library("xgrammar"), "regex", pattern)
    assert taken(grammar, TEXTS) == {text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)}


@pytest.mark.parametrize("name", ["llguidance", "outlines"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_other_libraries_read_a_regex_alike(name: str, pattern: str) -> None:
    """outlines-core allows less: where an answer may end, no token after which it could not end."""
    grammar, texts = compiled(library(name), "regex", pattern), TEXTS[::5]
    answers = taken(grammar, texts)
    wanted = {text for text in texts if re.fullmatch(pattern, text, re.ASCII)}
    assert answers <= wanted if name == "outlines" else answers == wanted


COMMON = [
    (r"(\d{1,3}\.){3}\d{1,3}", "127.0.0.1", "127.0.0"),
    (r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)", "8.8.8.8", "8.8.8"),
    ("(Paris|London)", "Paris", "Rome"),
    (r"\w+@\w+\.com\n", "alan@enigma.com\n", "alan@enigma.com"),
    (r"\{\n  \"name\": \"[\w\d\s]{1,16}\"\n\}", '{\n  "name": "Harry 7"\n}', '{\n  "name": ""\n}'),
    (r"[A-Z][a-z]*(?: [A-Z][a-z]*)*", "Ada Lovelace", "ada"),
    (r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])", "2024-12", "2024-13"),
    (r"(?<year>\d{4})", "2024", "20245"),
    (r"^(yes|no)$", "yes", "maybe"),
    (r"-?\d+(\.\d+)?([eE][+-]?\d+)?", "-1.5e+3", "1."),
    ('"(?:[^"\\\\]|\\\\.)*?"', r'"a\"b"', '"a"b"'),
]


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize(("pattern", "good", "bad"), COMMON)
def test_common_regexes(name: str, pattern: str, good: str, bad: str) -> None:
    grammar = compiled(library(name), "regex", pattern)
    assert accepts(grammar, good) or name == "outlines"
    assert not accepts(grammar, bad)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (".", "\n\r\u2028\u2029"),
        (r"\s", "\xa0\u2028\ufeff\x1c"),
        (r"\S", "\xa0\u2028\ufeff\x1c"),
        (r"[^\s]", "\xa0\x1c"),
    ],
)
def test_a_character_of_which_the_dialects_differ_is_not_allowed(pattern: str, texts: str) -> None:
    grammar = compiled(library("xgrammar"), "regex", pattern)
    assert not [text for text in texts if accepts(grammar, text)]


REFUSED = [
    ("a$b", "no text matches the pattern"),
    ("a^b", r"'\^' behind characters"),
    (r"(a)\1", r"\\1: references back and octal escapes"),
    (r"(?P<x>a)(?P=x)", r"'\(\?P'"),
    (r"(?<x>a)\k<x>", r"\\k"),
    (r"\012", r"\\0: references back and octal escapes"),
    (r"[\12]", r"\\1: references back and octal escapes"),
    (r"\ba\b", r"\\b"),
    ("(?<=a)b", "looks behind"),
    ("(?<!a)b", "looks behind"),
    ("(?i)a", r"'\(\?i'"),
    ("(?i:a)", r"'\(\?i'"),
    ("(?>a)", r"'\(\?>'"),
    ("(?#a)", r"'\(\?#'"),
    ("(?<1>a)", "malformed name"),
    ("a{,3}", r"\{,3\}; write \{0,3\}"),
    ("a{3,2}", "at least more often than at most"),
    ("a{1000000}", f"more than {MAX_COUNT} times"),
    ("a**", "repeats a repetition"),
    ("a*+", "repeats a repetition"),
    ("a{2}{3}", "repeats a repetition"),
    ("(a$)*", "repeats an assertion"),
    ("*a", "nothing to repeat"),
    ("[]a]", "beginning of a class"),
    ("[^]a]", "beginning of a class"),
    ("[[:alpha:]]", r"\[:alpha:\]"),
    ("[b-a]", "range of characters that is none"),
    ("[a", "ends too early"),
    ("(a", r"'\(' that is not closed"),
    ("a)", r"unmatched '\)'"),
    (r"\h", r"\\h"),
    (r"\x{61}", "without hexadecimal digits"),
    (r"\x+1", "without hexadecimal digits"),
    (r"\c1", "without a letter"),
    (r"\U00110000", "no character"),
    ("a\\", "ends too early"),
    ("(?!a)(?=a)a", "no text matches the pattern"),
    ("\ud800", "no text matches the pattern"),
    ("(" * 30_000 + "a" + ")" * 30_000, "groups in each other"),
]


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize(("pattern", "words"), REFUSED, ids=[repr(pattern[:20]) for pattern, _ in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_name(name: str, pattern: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        library(name).compile(GrammarSpec("regex", pattern))


CHOICES = ["a\x00b", "\x00", "a.b", "(é|京)", "[^a]{,2}", "\\d", "^x$", "", "\n\t\r"]


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_choices_are_taken_literally(name: str) -> None:
    grammar = compiled(library(name), "regex", choice_regex(CHOICES))
    assert all(accepts(grammar, text) for text in CHOICES)
    assert not any(accepts(grammar, text) for text in ("a", "ab", "axb", "é", "b", "1", "x", "\n"))


def test_a_regex_in_a_structural_tag_is_the_same_language() -> None:
    text = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "[^é]\\u0000?"}}'
    grammar = compiled(library("xgrammar"), "structural_tag", text)
    assert [accepts(grammar, text) for text in ("a", "a\x00", "京", "é", "")] == [True, True, True, False, False]


def test_a_long_count_is_no_work() -> None:
    """Neither here nor in the library."""
    grammar = compiled(library("xgrammar"), "regex", "([^é]|ab){0,100000}")
    assert accepts(grammar, "a" * 50) and not accepts(grammar, "é")
