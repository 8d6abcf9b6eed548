"""Patterns against Python's own: the first end of a match, wherever the text was cut, and no pattern is dear."""

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.utils.stop_regex import MAX_MATCH, RegexWatch, compile_regex


def first_end(pattern: str, text: str) -> tuple[int, int] | None:
    """Python's result: the end of the match that is complete first, and the farthest start of a match with that end."""
    for end in range(1, len(text) + 1):
        for begin in range(end):
            if re.compile(f"(?:{pattern})").fullmatch(text, begin, end):
                return end, end - begin
    return None


def watched(pattern: str, pieces: list[str]) -> tuple[int, int] | None:
    watch, read = RegexWatch(pattern), 0
    for piece in pieces:
        if (end := watch.advance(piece)) >= 0:
            return read + end, watch.length
        read += len(piece)
    return None


PATTERNS = [
    "abc", "a|bc", "ab*c", "a+b", "(?:ab)+c", "[a-c]{2,3}d", "[^a]b", r"\d+\.", r"\s\w", "a.c", "a?b", "(a|b)*c{2}",
    "(ab|a)(bc|c)", r"[\d-]a", "a{2}", "b{1,}a", "[]a]b", r"\.\*", "(?:a|(?:b|c)+)d", "a??b", "(?:a*b?)*c", r"[\]\\]a",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@given(pieces=st.lists(st.text("abcd1. \n]*-\\", max_size=5), max_size=5))
def test_as_python_finds_it(pattern: str, pieces: list[str]) -> None:
    assert watched(pattern, pieces) == first_end(pattern, "".join(pieces))


def test_what_may_become_a_match_is_known() -> None:
    watch = RegexWatch("END[0-9]{2}")
    held = []
    for character in "xENEND4":
        assert watch.advance(character) == -1
        held.append(watch.matched)
    assert held == [0, 1, 2, 1, 2, 3, 4]
    assert watch.advance("x") == -1
    assert watch.matched == 0


def test_an_empty_pattern_takes_little_work_to_compile() -> None:
    """A state that leads nowhere costs no character a move, but finding that out takes as long."""
    for pattern in ("(|||||){70}a", "((|)(|)(|)){30}a"):
        with pytest.raises(InvalidRequest, match="too large"):
            compile_regex(pattern)


def test_a_character_is_tested_once_for_all_repeats() -> None:
    tested: list[str] = []
    watch = RegexWatch("[a-c]{1,200}d")
    original = watch._automaton.tests
    test = next(one for one in original if one is not original[0])

    def counted(character: str) -> bool:
        tested.append(character)
        return "a" <= character <= "c"

    automaton = replace(watch._automaton, tests=[counted if one is test else one for one in original])
    watch._automaton = automaton
    watch.advance("abcabcabc")
    assert len(tested) <= 9


def test_a_match_has_a_longest_length() -> None:
    assert watched("a.*b", ["a" + "." * (MAX_MATCH - 2) + "b"]) == (MAX_MATCH, MAX_MATCH)
    assert watched("a.*b", ["a" + "." * MAX_MATCH + "b"]) is None


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "1 to 256 characters"),
        ("a" * 257, "1 to 256 characters"),
        ("a*", "empty text"),
        ("(a", "without its )"),
        ("a)", "without its ("),
        ("[a", "ends too early"),
        ("*a", "nothing to repeat"),
        ("^a", "anchors"),
        (r"(a)\1", "not supported"),
        (r"\ba", "not supported"),
        ("(?=a)b", "only (?:"),
        ("a{1001}", "too large"),
        ("((a{30}){30}){30}", "too large"),
        ("(a?){60}b", "too large"),
        ("a{2,1}", "smaller"),
        ("a{x}", "must begin"),
        ("[b-a]", "no order"),
        ("(" * 40 + "a" + ")" * 40, "nested deeper"),
        ("a\\", "ends too early"),
    ],
)
def test_what_is_refused_says_why(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        compile_regex(pattern)
    assert caught.value.param == "stop_regex"


def test_no_pattern_holds_up_others() -> None:
    # The classic that takes a matcher which goes back longer than the universe is old.
    watch = RegexWatch("(?:a+)+b")
    begun = time.process_time()
    assert watch.advance("a" * 5000) == -1
    assert time.process_time() - begun < 2


def test_a_dollar_at_the_end_is_where_a_match_ends() -> None:
    watch = RegexWatch("ab$")
    assert watch.advance("xxab") == 4
    with pytest.raises(InvalidRequest, match="anchors"):
        compile_regex("a$b")
    with pytest.raises(InvalidRequest, match="empty text"):
        compile_regex("$")
