"""Regular languages of characters, with intersection and complement, by Brzozowski's derivatives.

Expressions are immutable and built by the functions below, which keep them small. Source: J. Brzozowski, "Derivatives
of Regular Expressions", 1964; S. Owens et al., "Regular-expression derivatives re-examined", 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points: (first, last), sorted, apart from each other."""

END = 0x110000
CHARACTERS: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""All code points but surrogates."""


class Expr:
    """A node of a regular expression. `kind` is none, empty, class, cat, alt, rep, and, not, or one of the kinds that
    `grammar.py` adds.
    """

    __slots__ = ("_hash", "args", "kind")

    def __init__(self, kind: str, *args: object) -> None:
        self.kind = kind
        self.args = args
        self._hash = hash((kind, args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Expr) or self._hash != other._hash:
            return False
        return self.kind == other.kind and self.args == other.args

    def __repr__(self) -> str:
        return f"{self.kind}{self.args}"

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The operands of cat, alt and and; the single operand of not and rep."""
        return self.args if self.kind in _MANY else self.args[:1]  # type: ignore[return-value]

    @property
    def ranges(self) -> Ranges:
        """The code points of a class."""
        return self.args[0]  # type: ignore[return-value]

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The smallest and largest count of a rep; None: no largest."""
        return self.args[1], self.args[2]  # type: ignore[return-value]


_MANY = ("cat", "alt", "and")
NONE = Expr("none")
EMPTY = Expr("empty")


def char_class(ranges: Iterable[tuple[int, int]]) -> Expr:
    """Returns the language of one character of `ranges`, which may overlap. Surrogates are left out."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return Expr("class", tuple(merged)) if merged else NONE


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        for low, high in CHARACTERS:
            if max(first, low) <= min(last, high):
                yield max(first, low), min(last, high)


def all_but(ranges: Ranges) -> Ranges:
    """Returns the characters that are not in `ranges`."""
    found, at = [], 0
    for first, last in ranges:
        if at < first:
            found.append((at, first - 1))
        at = last + 1
    if at < END:
        found.append((at, END - 1))
    return tuple(_without_surrogates(found))


def text(value: str) -> Expr:
    """Returns the language of exactly this text; NONE if it holds a surrogate, which UTF-8 cannot encode."""
    parts = tuple(map(_one, value))
    if NONE in parts or len(parts) < 2:
        return cat(*parts)
    return Expr("cat", *parts)


def only_text(expr: Expr) -> str | None:
    """Returns the text that `expr` is, if it was made of a text; None otherwise."""
    parts = expr.parts if expr.kind == "cat" else (expr,)
    codes = [part.ranges[0] for part in parts if part.kind == "class" and len(part.ranges) == 1]
    if len(codes) < len(parts) or any(first != last for first, last in codes):
        return None
    return "".join(chr(first) for first, _ in codes)


@lru_cache(1 << 14)
def _one(character: str) -> Expr:
    return char_class([(ord(character), ord(character))])


def cat(*parts: Expr) -> Expr:
    """Returns the concatenation of the parts."""
    found: list[Expr] = []
    for part in parts:
        if part.kind == "none":
            return NONE
        if part.kind == "cat":
            found.extend(part.parts)
        elif part.kind != "empty":
            found.append(part)
    if not found:
        return EMPTY
    return found[0] if len(found) == 1 else Expr("cat", *found)


def alt(*parts: Expr) -> Expr:
    """Returns the union of the parts."""
    found: dict[Expr, None] = {}
    classes: list[tuple[int, int]] = []
    for part in parts:
        for one in part.parts if part.kind == "alt" else (part,):
            if one.kind == "class":
                classes.extend(one.ranges)
            elif one.kind != "none":
                found[one] = None
    if classes:
        found = {char_class(classes): None, **found}
    if ANYTHING in found:
        return ANYTHING
    if not found:
        return NONE
    return next(iter(found)) if len(found) == 1 else Expr("alt", *found)


def rep(part: Expr, least: int = 0, most: int | None = None) -> Expr:
    """Returns `part` repeated `least` to `most` times; None: any number of times."""
    if most == 0 or part.kind == "empty":
        return EMPTY
    if part.kind == "none":
        return NONE if least else EMPTY
    if least == most == 1:
        return part
    if part.kind == "rep" and part.bounds == (0, None):
        return part
    return Expr("rep", part, least, most)


def both(*parts: Expr) -> Expr:
    """Returns the intersection of all parts."""
    found: dict[Expr, None] = {}
    for part in parts:
        for one in part.parts if part.kind == "and" else (part,):
            if one.kind == "none":
                return NONE
            if one != ANYTHING:
                found[one] = None
    if not found:
        return ANYTHING
    if EMPTY in found:
        return EMPTY if all(nullable(one) for one in found) else NONE
    return next(iter(found)) if len(found) == 1 else Expr("and", *sorted(found, key=hash))


def inverse(part: Expr) -> Expr:
    """Returns the complement of `part`."""
    if part.kind == "not":
        return part.parts[0]
    if part.kind == "none":
        return ANYTHING
    return NONE if part == ANYTHING else Expr("not", part)


def multiple(divisor: int, places: int) -> Expr:
    """Returns the language of positive decimal numbers, as JSON writes them, that `divisor` / 10**`places` divides."""
    return Expr("multiple", divisor, places, 0, BEGIN)


_DIGIT_CUTS = frozenset([46, *range(47, 59)])

BEGIN, BEFORE_POINT, AFTER_ZERO = -3, -2, -1
"""Positions in a number: before the first digit, before the point, after a leading zero that only a point may
follow.
"""


def _multiple_ends(divisor: int, places: int, remainder: int, seen: int) -> bool:
    if seen in (BEGIN, 0):
        return False
    power: int = 10 ** (places - max(seen, 0))
    return remainder * power % divisor == 0


def _after_digit(divisor: int, places: int, remainder: int, seen: int, code: int) -> Expr:
    """Returns the derivative of a `multiple` by one character.

    `remainder`: of the digits so far. `seen`: how many of them stand after the point, or one of the names above.
    """
    if code == ord("."):
        return Expr("multiple", divisor, places, remainder, 0) if seen in (BEFORE_POINT, AFTER_ZERO) else NONE
    digit = code - ord("0")
    if not 0 <= digit <= 9 or seen == AFTER_ZERO:
        return NONE
    if seen == places:
        return NONE
    after = AFTER_ZERO if seen == BEGIN and digit == 0 else BEFORE_POINT if seen < 0 else seen + 1
    return Expr("multiple", divisor, places, (remainder * 10 + digit) % divisor, after)


ANY = char_class(CHARACTERS)
ANYTHING = Expr("rep", ANY, 0, None)


@lru_cache(1 << 16)
def nullable(expr: Expr) -> bool:
    """True if the language contains the empty text."""
    match expr.kind:
        case "empty":
            return True
        case "cat" | "and":
            return all(map(nullable, expr.parts))
        case "alt":
            return any(map(nullable, expr.parts))
        case "rep":
            return expr.bounds[0] == 0 or nullable(expr.parts[0])
        case "not":
            return not nullable(expr.parts[0])
        case "multiple":
            return _multiple_ends(*expr.args)  # type: ignore[arg-type]
    return False


@lru_cache(1 << 16)
def derivative(expr: Expr, code: int) -> Expr:
    """Returns the texts that may follow the character `code`."""
    match expr.kind:
        case "class":
            return EMPTY if any(first <= code <= last for first, last in expr.ranges) else NONE
        case "cat":
            found = []
            for place, part in enumerate(expr.parts):
                found.append(cat(derivative(part, code), *expr.parts[place + 1 :]))
                if not nullable(part):
                    break
            return alt(*found)
        case "alt":
            return alt(*(derivative(part, code) for part in expr.parts))
        case "and":
            return both(*(derivative(part, code) for part in expr.parts))
        case "not":
            return inverse(derivative(expr.parts[0], code))
        case "rep":
            (part,), (least, most) = expr.parts, expr.bounds
            # If `part` may be empty, the count of the others is free.
            least = 0 if nullable(part) else max(0, least - 1)
            return cat(derivative(part, code), rep(part, least, None if most is None else most - 1))
        case "multiple":
            return _after_digit(*expr.args, code)  # type: ignore[arg-type,call-arg]
    return NONE


@lru_cache(1 << 16)
def cuts(expr: Expr) -> frozenset[int]:
    """Returns the code points at which the derivative may change."""
    match expr.kind:
        case "class":
            return frozenset(cut for first, last in expr.ranges for cut in (first, last + 1))
        case "cat":
            found: frozenset[int] = frozenset()
            for part in expr.parts:
                found |= cuts(part)
                if not nullable(part):
                    break
            return found
        case "alt" | "and" | "not" | "rep":
            return frozenset().union(*map(cuts, expr.parts))
        case "multiple":
            return _DIGIT_CUTS
    return frozenset()


def contains(expr: Expr, value: str) -> bool:
    """True if `value` is in the language."""
    for character in value:
        expr = derivative(expr, ord(character))
        if expr.kind == "none":
            return False
    return nullable(expr)


@lru_cache(1 << 14)
def plain(expr: Expr) -> bool:
    """True if the expression has neither intersection nor complement."""
    if expr.kind in ("and", "not", "multiple"):
        return False
    return expr.kind in ("class", "none", "empty") or all(map(plain, expr.parts))


@lru_cache(1 << 14)
def lengths(expr: Expr) -> tuple[int, int | None]:
    """Returns the fewest and most characters of texts in a plain `expr`; None: any number."""
    match expr.kind:
        case "class":
            return 1, 1
        case "cat":
            found = [lengths(part) for part in expr.parts]
            most = [high for _, high in found]
            return sum(low for low, _ in found), None if None in most else sum(high or 0 for high in most)
        case "alt":
            found = [lengths(part) for part in expr.parts]
            highest = [high for _, high in found]
            return min(low for low, _ in found), None if None in highest else max(high or 0 for high in highest)
        case "rep":
            low, high = lengths(expr.parts[0])
            least, times = expr.bounds
            return low * least, None if high is None or times is None else high * times
    return 0, 0
