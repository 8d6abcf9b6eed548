"""Regular languages of strings and numbers, against Python's own regular expressions and decimals."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.automata import as_expression, automaton, is_empty
from mysglang.srt.constrained.json_schema.numbers import Bounds, numbers
from mysglang.srt.constrained.json_schema.patterns import strings_with
from mysglang.srt.constrained.json_schema.regular import both, contains, inverse

PATTERNS = [
    *("^a", "a$", "^(a|b)$", "^a|b$", "b+", "^[0-9]{5}$", "(^a$)|(^b)", "^(?!ab)[a-c]*$", "^$", "", "[^a]"),
    *("^a.{2}c?$", "(?=.*a)(?=.*b)", "a(?!b)", "^(foo|bar$)", "^(?:ab|c){2,}$", r"\d\.?x", "^[a-c-]+$"),
]


def texts(rng: random.Random, count: int = 300) -> list[str]:
    return ["".join(rng.choices("abc059.fo-rx", k=rng.randrange(6))) for _ in range(count)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    language = strings_with(pattern)
    plain = as_expression(automaton(language), 10_000)
    for value in texts(random.Random(0)):
        found = re.search(pattern, value) is not None
        assert contains(language, value) is found
        assert contains(plain, value) is found
        assert contains(inverse(language), value) is not found


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", "(?<=a)b", r"\bword", "(a", "a)", "*a", "[b-a]", "a{3,2}", "x^", "a**", r"\1"]
)
def test_what_is_no_regular_language_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="the pattern"):
        strings_with(pattern)


def test_white_space_of_one_dialect_is_neither_allowed_nor_needed() -> None:
    for character in "\xa0\x1c\ufeff":
        assert not any(
            contains(strings_with(f"^{pattern}$"), character) for pattern in (r"\s", r"\S", r"[^\s]", r"[^\S]")
        )
        assert contains(strings_with(r"^[\s\S]$"), character)
    assert contains(strings_with(r"^[^\s][^\S]$"), "a ")


def test_a_pattern_that_needs_too_many_states_is_refused() -> None:
    with pytest.raises(GrammarError, match="too many states"):
        automaton(strings_with("a.{13}$"))


def test_nothing_is_in_two_languages_that_are_apart() -> None:
    assert is_empty(both(strings_with("^a"), strings_with("^b")))
    assert not is_empty(both(strings_with("a"), strings_with("b")))


BOUNDS = [
    Bounds(low=Decimal(3)),
    Bounds(low=Decimal("-2.5"), high=Decimal("10.25"), high_open=True),
    Bounds(integer=True, low=Decimal(0), high=Decimal(100)),
    Bounds(integer=True, high=Decimal(-7)),
    Bounds(divisors=frozenset([Decimal("0.25")])),
    Bounds(integer=True, divisors=frozenset([Decimal(7), Decimal(4)])),
    Bounds(fractional=True, low=Decimal(1), high=Decimal(20)),
    Bounds(excluded=frozenset([Decimal(5), Decimal(0)])),
    Bounds(low=Decimal("0.125"), low_open=True, high=Decimal("0.13")),
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_numbers_are_those_within_bounds(bounds: Bounds) -> None:
    """All that are taken are within; of those within, only other ways to write a number are left out."""
    language, rng = numbers(bounds), random.Random(1)
    for _ in range(2000):
        fraction = rng.choice(["", "." + "".join(rng.choices("01257", k=rng.randrange(1, 4)))])
        said = rng.choice(["", "-"]) + str(rng.randrange(rng.choice([2, 12, 200]))) + fraction
        value = Decimal(said)
        if contains(language, said):
            assert bounds.holds(value)
        elif bounds.holds(value):
            assert bounds.integer or bounds.divisors or value == 0
            assert "." in said or value == 0


def test_no_bounded_number_reads_as_its_open_bound() -> None:
    assert not contains(numbers(Bounds(high=Decimal(10), high_open=True)), "9." + 20 * "9")
    assert contains(numbers(Bounds(high=Decimal(10), high_open=True)), "9.99999")
