r"""ECMA-262 regular expressions, as `pattern` has them, read as regular languages of whole strings.

A pattern may be found anywhere in a string, so `b` is read as `.*b.*`; `^` and `$` remove the `.*` at their side.
A pattern that is no regular language (a reference back, `\b`) raises GrammarError. Where ECMA-262 and Python
disagree about a class, such as `\s`, the characters are taken on which both agree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.regular import (
    ANYTHING,
    CHARACTERS,
    EMPTY,
    NONE,
    Expr,
    Ranges,
    all_but,
    alt,
    both,
    cat,
    char_class,
    inverse,
    nullable,
    rep,
    text,
)

MAX_DEPTH = 50
"""Groups in groups."""
MAX_COUNT = 5000
"""Largest number in `{m,n}`."""

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES: Ranges = ((9, 13), (32, 32))
ALL_SPACES: Ranges = (
    *((9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
"""White space in one of the two languages."""
LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))

_CLASSES = {
    "d": DIGITS,
    "D": all_but(DIGITS),
    "w": WORD,
    "W": all_but(WORD),
    "s": SPACES,
    "S": all_but(ALL_SPACES),
}
_WIDE_CLASSES = {**_CLASSES, "s": ALL_SPACES, "S": all_but(SPACES)}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_CATEGORIES = {"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Number": "N", "Decimal_Number": "Nd"}
_CATEGORIES |= {"Punctuation": "P", "Symbol": "S", "Mark": "M", "Separator": "Z", "digit": "Nd"}

_HEXADECIMAL = re.compile("[0-9a-fA-F]+")

START = Expr("start")
STOP = Expr("stop")
_ANY = char_class(CHARACTERS)


@lru_cache(1024)
def strings_with(pattern: str, *, wide: bool = False) -> Expr:
    """Returns the strings in which `pattern` is found. `wide`: with every character that at least one dialect
    accepts.
    """
    try:
        return _found_in(PatternReader(pattern, wide=wide).whole(), ANYTHING)
    except RecursionError:
        raise GrammarError("the pattern is nested too deeply") from None


@lru_cache(1024)
def whole(pattern: str) -> Expr:
    """Returns the strings that `pattern` describes from end to end."""
    return from_end_to_end(PatternReader(pattern).whole())


def from_end_to_end(pattern: Expr) -> Expr:
    """Returns the strings that a pattern, as its reader returned it, describes from end to end."""
    return _from_here(pattern, EMPTY)


class PatternReader:
    """One pattern, read from left to right. Assertions become nodes of their own: start, stop, ahead."""

    max_count = MAX_COUNT

    def __init__(self, pattern: str, *, wide: bool = False) -> None:
        self._pattern = pattern
        self._wide = wide
        self._at = 0
        self._depth = 0

    def whole(self) -> Expr:
        found = self._choices()
        if self._at < len(self._pattern):
            raise GrammarError("the pattern has an unmatched ')'")
        return found

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, wanted: str) -> bool:
        if not self._pattern.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise GrammarError("the pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _choices(self) -> Expr:
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        return found[0] if len(found) == 1 else _alternatives(found)

    def _sequence(self) -> Expr:
        found = []
        while self._peek() not in ("", "|", ")"):
            found.append(self._repeated(self._atom()))
        return _sequence(found)

    def _atom(self) -> Expr:
        character = self._next()
        match character:
            case "^":
                return START
            case "$":
                return STOP
            case ".":
                return char_class(all_but(LINE_ENDS))
            case "[":
                return self._set()
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise GrammarError(f"the pattern has nothing to repeat before {character!r}")
        return text(character)

    def _group(self) -> Expr:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"the pattern has more than {MAX_DEPTH} groups in each other")
        ahead: bool | None = None
        if self._take("?"):
            if self._take("=") or self._take("!"):
                ahead = self._pattern[self._at - 1] == "="
            elif self._take("<=") or self._take("<!"):
                raise GrammarError("the pattern looks behind, which is not supported")
            elif self._take("<") or self._take("P<"):
                self._name()
            elif not self._take(":"):
                raise GrammarError(f"the pattern has a group '(?{self._peek()}', which is not supported")
        # A negative look-behind is read backwards.
        self._wide ^= ahead is False
        found = self._choices()
        self._wide ^= ahead is False
        if not self._take(")"):
            raise GrammarError("the pattern has a '(' that is not closed")
        self._depth -= 1
        return found if ahead is None else Expr("ahead", found, ahead)

    def _name(self) -> None:
        end = self._pattern.find(">", self._at)
        if not self._pattern[self._at : max(end, 0)].isidentifier():
            raise GrammarError("the pattern has a group with a malformed name")
        self._at = end + 1

    def _repeated(self, part: Expr) -> Expr:
        bounds = self._count()
        if bounds is None:
            return part
        self._take("?")
        if self._peek() in ("*", "+", "?") or self._count() is not None:
            raise GrammarError("the pattern repeats a repetition, which is only possible in a group")
        if not _asserts(part):
            return rep(part, *bounds)
        if bounds == (0, 1):
            return _alternatives([part, EMPTY])
        raise GrammarError("the pattern repeats an assertion, which is not supported")

    def _count(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        end = self._pattern.find("}", self._at) if self._peek() == "{" else -1
        if end < 0:
            return None
        low, comma, high = self._pattern[self._at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None
        self._at = end + 1
        if max(len(low), len(high)) > 6 or max(int(low), int(high or 0)) > self.max_count:
            raise GrammarError(f"the pattern repeats more than {self.max_count} times")
        most = int(high) if high else (None if comma else int(low))
        if most is not None and most < int(low):
            raise GrammarError("the pattern repeats at least more often than at most")
        return int(low), most

    def _set(self) -> Expr:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        classes = set()
        # A class of which one dialect may have more characters is taken with these where it forbids them.
        self._wide ^= negated
        while not self._take("]"):
            if self._peek() == "\\":
                classes.add(self._pattern[self._at + 1 : self._at + 2])
            ranges = self._member()
            dash = self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", "")
            if dash and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                self._at += 1
                last = self._member()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < ranges[0][0]:
                    raise GrammarError("the pattern has a range of characters that is none")
                ranges = ((ranges[0][0], last[0][0]),)
            found.extend(ranges)
        self._wide ^= negated
        # Each dialect has every character in one of the two.
        members = _ANY if {"s", "S"} <= classes else char_class(found)
        if not negated:
            return members
        return char_class(all_but(members.ranges if members.kind == "class" else ()))

    def _member(self) -> Ranges:
        character = self._next()
        if character != "\\":
            return ((ord(character), ord(character)),)
        if self._peek() == "b":
            self._at += 1
            return ((8, 8),)
        found = self._escape(in_set=True)
        return found.ranges if found.kind == "class" else ()

    def _escape(self, *, in_set: bool = False) -> Expr:
        character = self._next()
        if character in _CLASSES:
            return char_class((_WIDE_CLASSES if self._wide else _CLASSES)[character])
        if character in _CONTROLS and not (character == "0" and self._peek().isdigit()):
            return text(chr(_CONTROLS[character]))
        match character:
            case "x":
                return text(chr(self._hexadecimal(2)))
            case "u":
                return self._unicode()
            case "c":
                return self._control()
            case "p" | "P":
                return self._property(negated=character == "P")
            case "-" if in_set:
                return text("-")
        if character.isdigit():
            raise GrammarError(f"the pattern uses \\{character}: references back and octal escapes are not supported")
        if character.isalnum() and character.isascii():
            raise GrammarError(f"the pattern uses \\{character}, which is not supported")
        return text(character)

    def _hexadecimal(self, digits: int) -> int:
        found = self._pattern[self._at : self._at + digits]
        if len(found) < digits or not _HEXADECIMAL.fullmatch(found):
            raise GrammarError("the pattern has an escape without hexadecimal digits")
        self._at += digits
        return int(found, 16)

    def _control(self) -> Expr:
        letter = self._next()
        if not (letter.isascii() and letter.isalpha()):
            raise GrammarError("the pattern has \\c without a letter")
        return text(chr(ord(letter) % 32))

    def _character(self, digits: int) -> Expr:
        """Returns the character whose code point has these digits."""
        code = self._hexadecimal(digits)
        if code > 0x10FFFF:
            raise GrammarError("the pattern has an escape of no character")
        return text(chr(code))

    def _unicode(self) -> Expr:
        if self._take("{"):
            found = self._character(max(0, self._pattern.find("}", self._at) - self._at))
            self._at += 1
            return found
        code = self._hexadecimal(4)
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._hexadecimal(4)
            return text(chr(0x10000 + ((code - 0xD800) << 10) + (low & 0x3FF)))
        return text(chr(code))

    def _property(self, *, negated: bool) -> Expr:
        if not self._take("{"):
            raise GrammarError("the pattern has \\p without a property")
        end = self._pattern.find("}", self._at)
        name = self._pattern[self._at : max(self._at, end)].rpartition("=")[2]
        self._at = end + 1 or len(self._pattern)
        ranges = _category(_CATEGORIES.get(name, name))
        if not ranges:
            raise GrammarError("the pattern has a Unicode property that is not supported")
        return char_class(all_but(ranges) if negated else ranges)


@lru_cache(32)
def _category(name: str) -> Ranges:
    if not 1 <= len(name) <= 2:
        return ()
    found: list[tuple[int, int]] = []
    start: int | None = None
    for code in range(0x110000):
        inside = unicodedata.category(chr(code)).startswith(name)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            found.append((start, code - 1))
            start = None
    return tuple(found)


def _alternatives(parts: Iterable[Expr]) -> Expr:
    """Does what `alt` does, also if there are assertions among the parts."""
    found = list(parts)
    return Expr("alt", *found) if any(map(_asserts, found)) else alt(*found)


def _sequence(parts: Iterable[Expr]) -> Expr:
    found = list(parts)
    if not any(map(_asserts, found)):
        return cat(*found)
    return found[0] if len(found) == 1 else Expr("cat", *found)


def _asserts(part: Expr) -> bool:
    if part.kind in ("start", "stop", "ahead"):
        return True
    return part.kind in ("cat", "alt", "rep") and any(map(_asserts, part.parts))


def _found_in(part: Expr, before: Expr) -> Expr:
    """Returns the strings in which `part` is found behind `before`, which is ANYTHING, or EMPTY at the start."""
    if part.kind == "alt":
        return alt(*(_found_in(one, before) for one in part.parts))
    if not _asserts(part):
        return cat(before, part, ANYTHING)
    first, *rest = part.parts if part.kind == "cat" else (part,)
    if first.kind == "start":
        return _found_in(_sequence(rest), EMPTY)
    if first.kind == "alt" and _asserts(first):
        return alt(*(_found_in(_joined(one, rest), before) for one in first.parts))
    if first.kind == "cat":
        return _found_in(_joined(first, rest), before)
    return cat(before, _from_here(part, ANYTHING, inside=before != EMPTY))


def _joined(first: Expr, rest: Iterable[Expr]) -> Expr:
    return _sequence([*(first.parts if first.kind == "cat" else (first,)), *rest])


@lru_cache(4096)
def _from_here(part: Expr, after: Expr, *, inside: bool = False) -> Expr:
    """Returns the rest of a string that continues with `part`, and then with `after`. `inside`: characters may have
    come before.
    """
    if not _asserts(part):
        return cat(part, after)
    if part.kind == "alt":
        return alt(*(_from_here(one, after, inside=inside) for one in part.parts))
    first, *rest = part.parts if part.kind == "cat" else (part,)
    following = _sequence(rest)
    match first.kind:
        case "stop":
            # Only parts that may be empty can follow.
            return EMPTY if nullable(_from_here(following, after, inside=inside)) else NONE
        case "ahead":
            inner, positive = first.args
            assert isinstance(inner, Expr)
            seen = _from_here(inner, ANYTHING, inside=inside)
            return both(seen if positive else inverse(seen), _from_here(following, after, inside=inside))
        case "alt" | "cat" if _asserts(first):
            options = first.parts if first.kind == "alt" else (first,)
            return alt(*(_from_here(_joined(one, rest), after, inside=inside) for one in options))
        case "start":
            if inside:
                raise GrammarError("the pattern has '^' behind characters, which is not supported")
            return _from_here(following, after)
    return cat(first, _from_here(following, after, inside=True))
