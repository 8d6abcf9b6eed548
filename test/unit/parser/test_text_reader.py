"""TextReader against a plain reading of the whole text: where pieces end makes no difference."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mysglang.srt.parser.text_reader import EndOfText, Steps, T, TextReader

# Prefixes, suffixes and middles of each other.
MARKERS = ("ab", "abc", "b", "bca", "aab")
texts = st.text(alphabet="abcx", max_size=30)
cuts = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def read(reader: TextReader, steps: Steps[T], text: str, sizes: list[int]) -> T | None:
    """Result of `steps` over `text` in pieces; None if the text ends before."""
    pieces, turn = [], 0
    while text:
        size = sizes[turn % len(sizes)]
        pieces.append(text[:size])
        text, turn = text[size:], turn + 1
    try:
        for piece in pieces:
            reader.feed(piece)
            next(steps)
        reader.finish()
        next(steps)
    except StopIteration as stop:
        found: T = stop.value
        return found
    except EndOfText:
        return None
    raise AssertionError("the reading waits for more of a text that is over")


def first(markers: tuple[str, ...], text: str) -> re.Match[str] | None:
    return re.search("|".join(sorted(markers, key=len, reverse=True)), text)


@settings(max_examples=300)
@given(text=texts, sizes=cuts, markers=st.lists(st.sampled_from(MARKERS), min_size=1, max_size=3, unique=True))
@example(text="ab", sizes=[1], markers=["abc", "b"])  # one marker is cut off by the end, another stands within it
def test_until_is_a_search(text: str, sizes: list[int], markers: list[str]) -> None:
    reader, given_away = TextReader(), list[str]()
    marker = read(reader, reader.until(tuple(markers), given_away.append), text, sizes)
    expected = first(tuple(markers), text)
    assert marker == (expected and expected[0])
    assert "".join(given_away) == (text if expected is None else text[: expected.start()])


@settings(max_examples=300)
@given(text=texts, sizes=cuts, words=st.lists(st.sampled_from(MARKERS), min_size=1, max_size=3, unique=True))
def test_accept_takes_the_longest(text: str, sizes: list[int], words: list[str]) -> None:
    reader = TextReader()
    found = read(reader, reader.accept(*words), text, sizes)
    there = [word for word in words if text.startswith(word)]
    if there:
        assert found == max(there, key=len)
    else:
        assert not found


@settings(max_examples=300)
@given(text=texts, sizes=cuts, limit=st.integers(0, 8))
def test_before_looks_no_further_than_its_limit(text: str, sizes: list[int], limit: int) -> None:
    reader = TextReader()
    found = read(reader, reader.before(("bc",), limit), text, sizes)
    at = text.find("bc")
    assert found == ((text[:at], "bc") if 0 <= at <= limit else None)


def test_what_is_held_comes_back() -> None:
    reader = TextReader()
    reader.hold("<")
    assert read(reader, reader.accept("ab"), "abc", [1]) == "ab"
    assert reader.holding
    assert reader.release() == "<ab"
    assert not reader.holding
    assert reader.release() == ""


def test_a_run_needs_an_end() -> None:
    reader, seen = TextReader(), list[str]()
    assert read(reader, reader.run(re.compile("a*"), seen.append), "aaa", [1]) is None
    assert seen == ["a", "a", "a"]
    reader = TextReader()
    assert read(reader, reader.read(3), "abcd", [1]) == "abc"


def test_waiting_is_a_yield() -> None:
    reader = TextReader()
    steps = reader.peek()
    next(steps)
    reader.feed("x")
    with pytest.raises(StopIteration, match="x"):
        next(steps)
