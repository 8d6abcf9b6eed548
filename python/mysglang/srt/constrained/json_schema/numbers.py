"""Numbers as JSON writes them: which texts stand for numbers within bounds, or for multiples.

A number without bounds may have an exponent, of at most two digits so that every reader can hold it. One with bounds
is written without, and `-0` is left out. An integer is written without a fraction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.regular import (
    NONE,
    Expr,
    alt,
    both,
    cat,
    char_class,
    inverse,
    multiple,
    rep,
    text,
)

MAX_DIGITS = 60
"""Digits of a bound, before and after its point."""

DIGIT = char_class([(48, 57)])
NOT_ZERO = char_class([(49, 57)])
MINUS = text("-")
WHOLE = alt(text("0"), cat(NOT_ZERO, rep(DIGIT)))
FRACTION = cat(text("."), rep(DIGIT, 1))
EXPONENT = cat(char_class([(69, 69), (101, 101)]), rep(char_class([(43, 43), (45, 45)]), 0, 1), rep(DIGIT, 1, 2))
INTEGER = cat(rep(MINUS, 0, 1), WHOLE)
NUMBER = cat(INTEGER, rep(FRACTION, 0, 1), rep(EXPONENT, 0, 1))
EXACT_DIGITS = 15
"""Two numbers of so many digits are never the same double."""
FRACTION_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers from `low` to `high`. A bound that is `open` is not part of the range."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False
    integer: bool = False
    fractional: bool = False
    """True to exclude integers."""
    divisors: frozenset[Decimal] = frozenset()
    """Each must divide them."""
    excluded: frozenset[Decimal] = frozenset()

    def __and__(self, other: Bounds) -> Bounds:
        low, low_open = _tighter(self.low, self.low_open, other.low, other.low_open, 1)
        high, high_open = _tighter(self.high, self.high_open, other.high, other.high_open, -1)
        return Bounds(
            low,
            high,
            low_open,
            high_open,
            self.integer or other.integer,
            self.fractional or other.fractional,
            self.divisors | other.divisors,
            self.excluded | other.excluded,
        )

    def holds(self, value: Decimal) -> bool:
        """True if `value` is within the bounds."""
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        whole = value == value.to_integral_value()
        if (self.integer and not whole) or (self.fractional and whole) or value in self.excluded:
            return False
        return all(_divides(divisor, value) for divisor in self.divisors)


def _tighter(
    a: Decimal | None, a_open: bool, b: Decimal | None, b_open: bool, sign: int
) -> tuple[Decimal | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a - b) * sign > 0 else (b, b_open)


def _divides(divisor: Decimal, value: Decimal) -> bool:
    a, b = value.as_integer_ratio()
    c, d = divisor.as_integer_ratio()
    return (a * d) % (b * c) == 0


@lru_cache(1024)
def numbers(bounds: Bounds) -> Expr:
    """Returns the texts of the numbers within `bounds`. Raises GrammarError if they cannot be distinguished by their
    text.
    """
    if bounds == Bounds():
        return NUMBER
    if bounds == Bounds(integer=True):
        return INTEGER
    below = replace(
        bounds,
        low=None if bounds.high is None else -bounds.high,
        high=None if bounds.low is None else -bounds.low,
        low_open=bounds.high_open,
        high_open=bounds.low_open,
        excluded=frozenset(-value for value in bounds.excluded) | {Decimal(0)},
    )
    return alt(_from_zero(bounds), cat(MINUS, _from_zero(below)))


def _from_zero(bounds: Bounds) -> Expr:
    """Returns the part of the range that is not negative."""
    parts = [_of_kind(bounds)]
    if bounds.high is not None:
        if bounds.high < 0 or (bounds.high == 0 and bounds.high_open):
            return NONE
        parts.append(inverse(_above(_digits(bounds.high), strictly=not bounds.high_open)))
    if bounds.low is not None and (bounds.low > 0 or (bounds.low == 0 and bounds.low_open)):
        parts.append(_above(_digits(bounds.low), strictly=bounds.low_open))
    parts.extend(_multiples(divisor) for divisor in sorted(bounds.divisors))
    parts.extend(inverse(_exactly(_digits(value))) for value in sorted(bounds.excluded) if value >= 0)
    found = both(*parts)
    return NONE if is_empty(found) else found


def _of_kind(bounds: Bounds) -> Expr:
    """Returns the language of numbers in these bounds: integers, other numbers, or both. Digits are as few as let every
    reader tell the bounds apart.
    """
    named = [
        _digits(value) for value in (bounds.low, bounds.high, *bounds.divisors, *bounds.excluded) if value is not None
    ]
    before = max([9, *(len(whole) for whole, _ in named)])
    behind = max([min(FRACTION_DIGITS, max(1, EXACT_DIGITS - before)), *(len(fraction) + 1 for _, fraction in named)])
    if bounds.integer:
        least = max(before, EXACT_DIGITS)
        return NONE if bounds.fractional else alt(text("0"), cat(NOT_ZERO, rep(DIGIT, 0, least - 1)))
    whole = alt(text("0"), cat(NOT_ZERO, rep(DIGIT, 0, before - 1)))
    if not bounds.fractional:
        return cat(whole, rep(cat(text("."), rep(DIGIT, 1, behind)), 0, 1))
    digits = rep(DIGIT, 0, behind)
    return both(cat(whole, text("."), rep(DIGIT, 1, behind)), cat(WHOLE, text("."), digits, NOT_ZERO, digits))


def _digits(value: Decimal) -> tuple[str, str]:
    """Returns the digits before and after the point, without a sign and without trailing zeros."""
    value = abs(value)
    if not value.is_finite() or abs(value.adjusted()) > MAX_DIGITS:
        raise GrammarError(f"a number has more than {MAX_DIGITS} digits before or behind its point")
    before, _, behind = format(value, "f").partition(".")
    if len(behind.rstrip("0")) > MAX_DIGITS:
        raise GrammarError(f"a number has more than {MAX_DIGITS} digits before or behind its point")
    return before, behind.rstrip("0")


def _above(digits: tuple[str, str], *, strictly: bool) -> Expr:
    """Returns the language of positive numbers above `digits`, or at least as large."""
    before, behind = digits
    any_fraction = rep(FRACTION, 0, 1)
    found = [cat(NOT_ZERO, rep(DIGIT, len(before)), any_fraction)]
    for place, digit in enumerate(before):
        rest = len(before) - place - 1
        found.append(cat(text(before[:place]), _larger(digit), rep(DIGIT, rest, rest), any_fraction))
    fraction = [cat(text(behind[:place]), _larger(digit), rep(DIGIT)) for place, digit in enumerate(behind)]
    if strictly:
        fraction.append(cat(text(behind), rep(DIGIT), NOT_ZERO, rep(DIGIT)))
    elif behind:
        fraction.append(cat(text(behind), rep(DIGIT)))
    else:
        found.append(cat(text(before), any_fraction))
    found.append(cat(text(before), text("."), alt(*fraction)))
    return alt(*found)


def _exactly(digits: tuple[str, str]) -> Expr:
    before, behind = digits
    zeros = rep(text("0"))
    if behind:
        return cat(text(before), text("."), text(behind), zeros)
    return cat(text(before), rep(cat(text("."), text("0"), zeros), 0, 1))


def _larger(digit: str) -> Expr:
    return char_class([(ord(digit) + 1, 57)])


@lru_cache(64)
def _multiples(divisor: Decimal) -> Expr:
    """Returns the language of positive numbers that `divisor` divides."""
    before, behind = _digits(divisor)
    return multiple(int(before + behind), len(behind))
