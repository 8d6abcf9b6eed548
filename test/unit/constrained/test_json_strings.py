"""Classes of a grammar in markup, narrowed to what may be in a JSON string; what is not in a string stays."""

import pytest

from mysglang.srt.constrained.json_strings import json_safe_in_markup


def test_a_string_holds_no_control_character() -> None:
    assert json_safe_in_markup(r"a ::= [^\"\\\r\n]") == r"a ::= [^\0-\x1f\"\\]".replace(r"\x1f", r"\u001f")


def test_escapes_of_any_length_have_one_length() -> None:
    assert json_safe_in_markup(r'a ::= "\xe9a\\xe9"') == r'a ::= "\u00e9a\\xe9"'


@pytest.mark.parametrize("grammar", [r'a ::= ("[^a]" [ \n\t]* "\"[^" [eE] [,}\]:] [1-9])', r"b ::= [\"\\/bfnrt]"])
def test_the_rest_stays(grammar: str) -> None:
    assert json_safe_in_markup(grammar) == grammar
