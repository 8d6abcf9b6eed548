"""Classes of a grammar, narrowed to what may stand in a JSON string; what is not in a string stays."""

import re

import pytest

from mysglang.srt.constrained.json_strings import json_safe


def takes(narrowed: str, character: str) -> bool:
    return re.fullmatch(narrowed, character) is not None


@pytest.mark.parametrize("before", [r"[^\"\\\r\n]", r"[\0-\U0010ffff]", r"[^a]", r"[^[\f\n\r\t\v \xa0]"])
def test_nothing_that_json_forbids(before: str) -> None:
    after = json_safe(before)
    assert not any(takes(after, chr(code)) for code in range(0x20))
    assert not takes(after, '"') and not takes(after, "\\")
    assert takes(after, "b") and takes(after, "京") and takes(after, "🗼")


def test_what_was_excluded_stays_so() -> None:
    assert not takes(json_safe(r"[^b-d\x66\u00e9]"), "c")
    assert not takes(json_safe(r"[^b-d\x66\u00e9]"), "f")
    assert not takes(json_safe(r"[^b-d\x66\u00e9]"), "é")
    assert takes(json_safe(r"[^b-d\x66\u00e9]"), "e")


def test_white_space_of_regular_expressions() -> None:
    after = json_safe(r"[\f\n\r\t\v \xa0]")
    assert takes(after, " ") and takes(after, "\xa0") and not takes(after, "\n")


def test_escapes_of_any_length_have_one_length() -> None:
    told = json_safe(r'a ::= "\xe9a\\xe9" [^a]')
    assert told == r'a ::= "\u00e9a\\xe9" [^\0-\u001f\"\\a]'


@pytest.mark.parametrize(
    "grammar",
    [
        r'a ::= ("[^a]" [ \n\t]* "\"[^" [eE] [,}\]:] [1-9])',
        r"a ::= [^\0-\x1f\"\\\r\n]",
        r"b ::= [\"\\/bfnrt]",
    ],
)
def test_the_rest_stays(grammar: str) -> None:
    assert json_safe(grammar) == grammar
