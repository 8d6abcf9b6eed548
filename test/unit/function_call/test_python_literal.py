"""Python literals in calls: read as Python reads them, however the text was cut into pieces."""

import ast
import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.call_formats import OFFERED
from mysglang.srt.function_call.arguments_writer import unquoted
from mysglang.srt.function_call.base_detector import collect
from mysglang.srt.function_call.core_types import ToolCallItem
from mysglang.srt.function_call.python_literal import MAX_LITERAL, read
from mysglang.srt.function_call.pythonic_detector import PythonicDetector

BODIES = [
    *("", "a", r"\d+\.\w", r"a\nb", r"\"", r"\'", r"C:\new", "\\\\", r"\x41\u00e9", r"\U0001F642", r"\N{BULLET}"),
    *(r"\101", r"\477", r"\q", "a, b", "(x", "]", "=", "{{}}", "#", "it", "\\\n"),
]
PREFIXES = ["", "r", "R", "u", "b", "rb", "Br"]
QUOTES = ['"', "'", '"""', "'''"]
bodies = st.lists(st.sampled_from(BODIES), max_size=3).map("".join)
strings = st.builds(
    lambda prefix, quote, body: prefix + quote + body + quote,
    st.sampled_from(PREFIXES),
    st.sampled_from(QUOTES),
    bodies,
)
literals = st.one_of(
    strings,
    st.lists(strings, min_size=2, max_size=3).map(" ".join),
    st.lists(strings, max_size=3).map(lambda found: "[" + ", ".join(found) + "]"),
)


def reference(source: str) -> object:
    """The value as Python reads it, slowly and with its warnings; ValueError if it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.literal_eval(source)
        except (SyntaxError, TypeError) as error:
            raise ValueError from error


def called(source: str, size: int = 0) -> tuple[str, list[ToolCallItem]]:
    """Text and calls of an answer with `source` as an argument, which arrives in pieces of `size`; 0: at once."""
    text = f"[get_weather(city={source}, days=3)]"
    detector = PythonicDetector(OFFERED)
    pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return collect([event for piece in pieces for event in detector.feed(piece)] + detector.finish())


def argument(source: str, size: int = 0) -> Any:
    """The value of the argument `source`."""
    said, (call,) = called(source, size)
    found = json.loads(call.parameters)
    assert (said, found.pop("days"), list(found)) == ("", 3, ["city"])
    return found["city"]


def plain(value: object) -> object:
    """A value with the text of bytes in their place, as JSON says it. Raises ValueError."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


@settings(max_examples=300)
@given(source=literals)
def test_as_python_reads_them(source: str) -> None:
    try:
        expected = reference(source)
    except ValueError:
        with pytest.raises(ValueError):
            read(source)
    else:
        assert read(source) == expected


@settings(max_examples=100)
@given(source=literals, size=st.integers(1, 4))
def test_in_a_call_and_in_pieces(source: str, size: int) -> None:
    assert called(source, size) == called(source)
    try:
        expected = plain(reference(source))
    except ValueError:
        return
    assert argument(source) == expected


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (r'r"\d+"', r"\d+"),
        (r"r'a\'b'", r"a\'b"),
        (r'"\d"', r"\d"),
        ('b"ab"', "ab"),
        (r'b"\xff"', r'b"\xff"'),
        (r'[b"a", r"\d"]', ["a", r"\d"]),
        ('f"ab"', "ab"),
        ('"a" f"b{{}}"', "ab{}"),
        ('f"{x}"', 'f"{x}"'),
        ('"""say "a, b" (now"""', 'say "a, b" (now'),
        ("'''it's'''", "it's"),
        ('"a" "b"', "ab"),
        ('"a"\n   "b"', "ab"),
        ('""', ""),
        ('"" "a"', "a"),
        (r'"\N{BULLET}"', "•"),
        (r'"\N{no such}"', r'"\N{no such}"'),
        (r'"\777"', "ǿ"),
    ],
)
def test_strings_of_every_kind(source: str, value: object) -> None:
    assert argument(source) == argument(source, 1) == value


def test_a_long_source_is_not_read() -> None:
    with pytest.raises(ValueError, match="longer"):
        read('"' + "a" * MAX_LITERAL + '"')


@pytest.mark.parametrize("text", ['r"a"', 'f"a"', 'b"a"'])
def test_where_values_have_no_quotes_a_prefix_is_text(text: str) -> None:
    assert json.loads(unquoted(text, frozenset({"string"}))) == text


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'line 1\nline \"2\"\r\n\tand 3'", 'line 1\nline "2"\r\n\tand 3'),
        ("['a\\\\\nb', \"c\\\nd\"]", ["a\\\nb", "cd"]),
        ('{"k": [1, null, true, false], "n": None}', {"k": [1, None, True, False], "n": None}),
        ("[nil]", "[nil]"),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 7])
def test_what_templates_show_beyond_python(source: str, value: object, size: int) -> None:
    """LFM2.5's template writes texts between quotes as they are, and objects as JSON."""
    assert argument(source, size) == value
