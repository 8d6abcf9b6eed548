"""Values out of a stream: the end is found where a parser of whole texts finds it, and what is no JSON is noticed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mysglang.srt.parser.json_reader import json_string, json_value
from mysglang.srt.parser.text_reader import EndOfText, TextReader

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner), max_leaves=12)


def value_of(text: str, size: int) -> tuple[bool | None, str, str]:
    """(whether it is a value, None for one that is cut off; what was given away; what was not read)."""
    reader, parts = TextReader(), list[str]()
    steps = json_value(reader, parts.append)
    found, at = None, 0
    try:
        while found is None and at < len(text):
            reader.feed(text[at : at + size])
            at += size
            next(steps)
        reader.finish()
        next(steps)
    except StopIteration as stop:
        found = bool(stop.value)
    except EndOfText:
        pass
    return found, "".join(parts), reader.rest() + text[at:]


@settings(max_examples=200)
@given(value=trees, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]), size=st.integers(1, 9))
def test_a_value_ends_where_it_ends(value: object, ascii_only: bool, indent: int | None, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert value_of(text + ";}", size) == (True, text, ";}")


@settings(max_examples=300)
@given(text=st.text(alphabet='{}[]",: a1\\\n', max_size=14), size=st.integers(1, 4))
def test_any_text(text: str, size: int) -> None:
    found, given_away, rest = value_of(text, size)
    assert value_of(text, 99) == (found, given_away, rest)
    assert given_away.replace("\\n", "\n") + rest == text.replace("\\n", "\n")
    if _is_container(text):
        assert (found, rest.strip()) == (True, "")


def _is_container(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("text", "given_away"),
    [
        ("{]", "{"),
        ("[1}", "[1"),
        ('{"a" 1}', '{"a" '),
        ("{1: 2}", "{"),
        ("[,]", "["),
        ("[1,]", "[1,"),
        ("}", ""),
        ("é", ""),
    ],
)
def test_what_is_no_value(text: str, given_away: str) -> None:
    assert value_of(text, 1) == (False, given_away, text[len(given_away) :])


def test_a_line_break_in_a_string_is_escaped() -> None:
    assert value_of('{"a\n": "\t"};', 1) == (True, '{"a\\n": "\\t"}', ";")


@pytest.mark.parametrize(("text", "decoded"), [('"a\\u00e9\\"" ', 'aé"'), ('"\\x"', None), ("5 ", None)])
def test_strings(text: str, decoded: str | None) -> None:
    reader = TextReader()
    reader.feed(text)
    with pytest.raises(StopIteration) as stop:
        next(json_string(reader))
    assert stop.value.value == decoded


def test_depth_costs_no_stack() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert value_of(text + ";", 4096) == (True, text, ";")
