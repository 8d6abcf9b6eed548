"""Regular expressions that end a text: matched in one pass, each character at a cost that the pattern alone bounds.

A pattern becomes an automaton without going back (Thompson, "Regular expression search algorithm", CACM 1968), so that
no client's pattern can delay other texts. It is also known at any moment which end of the text may still become a
match. Hence no backreferences, no looking around, and no anchor but a `$` at the end.

No library does both: the package `regex` reports partial matches and goes back, RE2 does not go back and reports none.

Knows no request.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from mysglang.srt.errors import InvalidRequest

MAX_PATTERN = 256
"""Characters of a pattern."""
MAX_STATES = 1024
"""Limit for the states of its automaton; a repetition {m,n} counts n times."""
MAX_WORK = 2048
"""Moves that one character may cost at most."""
MAX_VISITS = 8192
"""States that are looked at to find the moves of all states: a pattern that is mostly empty has many of them."""
MAX_DEPTH = 32
"""Limit for nested groups."""
MAX_MATCH = 1024
"""Characters of a match. What takes longer to become one never does, so that no more than that is held back."""

Test = Callable[[str], bool]
"""Function that returns True if a character fits."""

_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


@dataclass(frozen=True, slots=True)
class Automaton:
    """A nondeterministic automaton. State 0 begins, `final` is a match. After a character, `steps[s]` is where a thread
    in s goes if `tests[s]`.
    """

    tests: list[Test]
    closures: list[tuple[int, ...]]
    """State -> the states with a test that are reached from it without a character, and `final` if that is reached."""
    targets: list[int]
    final: int
    work: int
    """Moves that one character may cost."""


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> Automaton:
    """Compiles a stop_regex. Raises InvalidRequest, which names the field and the position of the error."""
    if not 0 < len(pattern) <= MAX_PATTERN:
        raise InvalidRequest(f"stop_regex must have 1 to {MAX_PATTERN} characters.", param="stop_regex")
    automaton = _Builder(pattern).automaton(_Parser(pattern).whole())
    if automaton.final in automaton.closures[0]:
        raise _wrong(pattern, len(pattern), "it matches the empty text")
    return automaton


class RegexWatch:
    """Follows one text. A thread is a match that may still complete, with the place where it would begin."""

    __slots__ = ("_automaton", "_place", "_threads", "length", "matched", "stop")

    def __init__(self, pattern: str) -> None:
        self.stop = pattern
        self.matched = 0
        """How many of the last characters may be the beginning of a match."""
        self.length = 0
        """Length of the match, once there is one."""
        self._automaton = compile_regex(pattern)
        self._threads: dict[int, int] = {}
        self._place = 0

    def go_on(self) -> None:
        """Called after a match that does not count: the next one begins behind it."""
        self._threads, self.matched = {}, 0

    def advance(self, text: str, start: int = 0) -> int:
        """Reads on, from `start`. Returns the end of the first match as an index into `text`, or -1."""
        automaton, threads = self._automaton, self._threads
        for index in range(start, len(text)):
            character = text[index]
            fits: dict[Test, bool] = {}  # what is repeated {m,n} has one test in n states
            for state in automaton.closures[0]:
                threads.setdefault(state, self._place)
            self._place += 1
            stepped: dict[int, int] = {}
            for state, begun in threads.items():
                test = automaton.tests[state]
                if (fit := fits.get(test)) is None:
                    fit = fits[test] = test(character)
                if fit:
                    for following in automaton.closures[automaton.targets[state]]:
                        stepped[following] = min(begun, stepped.get(following, begun))
            if (begun_at := stepped.get(automaton.final)) is not None:
                self.length = self._place - begun_at
                return index + 1
            oldest = self._place - MAX_MATCH
            threads = {state: begun for state, begun in stepped.items() if begun > oldest}
        self._threads = threads
        self.matched = self._place - min(threads.values(), default=self._place)
        return -1


@dataclass(frozen=True, slots=True)
class _Character:
    test: Test


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: Sequence[_Part]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: Sequence[_Part]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Part
    least: int
    most: int | None


_Part: TypeAlias = "_Character | _Sequence | _Choice | _Repeat"


class _Parser:
    """Recursive descent over the pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> _Part:
        part = self._choice()
        if self._at < len(self._pattern):
            raise self._fault("a ) without its (")
        return part

    def _choice(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return _Choice(parts)

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            while (counts := self._counts()) is not None:
                part = _Repeat(part, *counts)
            parts.append(part)
        return _Sequence(parts)

    def _atom(self) -> _Part:
        match character := self._next():
            case "(":
                return self._group()
            case "[":
                return _Character(self._set())
            case ".":
                return _Character(lambda c: c != "\n")
            case "\\":
                return _Character(self._escape())
            case "*" | "+" | "?" | "{":
                raise self._fault(f"nothing to repeat before {character}")
            case "$" if self._peek() == "":
                # A match ends where the text so far ends: there the end of the text is always.
                return _Sequence(())
            case "^" | "$":
                raise self._fault("anchors are not supported, but for a $ at the end")
        return _Character(character.__eq__)

    def _group(self) -> _Part:
        if self._take("?") and not self._take(":"):
            raise self._fault("of groups that begin with (? only (?: is supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fault(f"groups are nested deeper than {MAX_DEPTH}")
        part = self._choice()
        if not self._take(")"):
            raise self._fault("a ( without its )")
        self._depth -= 1
        return part

    def _counts(self) -> tuple[int, int | None] | None:
        """Parses the repetition of the atom before. Lazy and greedy are the same, because the first end of a match
        counts.
        """
        found: tuple[int, int | None] | None = None
        match self._peek():
            case "*":
                found = 0, None
            case "+":
                found = 1, None
            case "?":
                found = 0, 1
            case "{":
                return self._bounds()
        if found is not None:
            self._at += 1
            self._take("?")
        return found

    def _bounds(self) -> tuple[int, int | None]:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise self._fault("{ must begin {m}, {m,} or {m,n}; write \\{ for the character")
        self._at = end + 1
        self._take("?")
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if most is not None and most < max(least, 1):
            raise self._fault("{m,n} with n smaller than m or 1")
        return least, most

    def _set(self) -> Test:
        negated = self._take("^")
        tests: list[Test] = []
        begin = self._at
        while self._peek() != "]" or self._at == begin:
            first = self._member()
            if isinstance(first, str) and self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in "]":
                self._at += 1
                last = self._member()
                if not isinstance(last, str) or last < first:
                    raise self._fault("a range of characters that has no order")
                tests.append(lambda c, low=first, high=last: low <= c <= high)  # type: ignore[misc]
            else:
                tests.append(first.__eq__ if isinstance(first, str) else first)
        self._at += 1
        return lambda c: negated != any(test(c) for test in tests)

    def _member(self) -> str | Test:
        character = self._next()
        if character != "\\":
            return character
        if (plain := _ESCAPES.get(self._peek())) is not None:
            self._at += 1
            return plain
        if not self._peek().isalnum():
            return self._next()
        return self._escape()

    def _escape(self) -> Test:
        character = self._next()
        if character.lower() in _CLASSES:
            inside = _CLASSES[character.lower()]
            return inside if character.islower() else lambda c: not inside(c)
        if character.isalnum() and character not in _ESCAPES:
            raise self._fault(f"\\{character} is not supported")
        return _ESCAPES.get(character, character).__eq__

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._fault("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _fault(self, what: str) -> InvalidRequest:
        return _wrong(self._pattern, self._at, what)


class _Builder:
    """Builds the automaton. Each state has a test and a target, or moves without a character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._tests: list[Test | None] = []
        self._targets: list[int] = []
        self._free: list[list[int]] = []

    def automaton(self, whole: _Part) -> Automaton:
        start = self._state()
        begin, final = self._build(whole)
        self._free[start].append(begin)
        closures, work, visits = [], 0, 0
        for state in range(len(self._tests)):
            reached = self._reach(state)
            closure = tuple(s for s in sorted(reached) if s == final or self._tests[s] is not None)
            work += len(closure)
            visits += len(reached)
            if work > MAX_WORK or visits > MAX_VISITS:
                raise self._too_large()
            closures.append(closure)
        return Automaton([test or _nothing for test in self._tests], closures, self._targets, final, work)

    def _build(self, part: _Part) -> tuple[int, int]:
        """Returns a new beginning and end with the part between them."""
        begin, end = self._state(), self._state()
        match part:
            case _Character(test):
                self._tests[begin], self._targets[begin] = test, end
            case _Sequence(parts):
                last = begin
                for inner in parts:
                    first, following = self._build(inner)
                    self._free[last].append(first)
                    last = following
                self._free[last].append(end)
            case _Choice(parts):
                for inner in parts:
                    first, last = self._build(inner)
                    self._free[begin].append(first)
                    self._free[last].append(end)
            case _Repeat(inner, least, most):
                last = begin
                for copy in range(max(least, 1) if most is None else most):
                    first, following = self._build(inner)
                    self._free[last].append(first)
                    if copy >= least:
                        self._free[last].append(end)
                    last = following
                self._free[last].append(end)
                if most is None:
                    self._free[last].append(first)
        return begin, end

    def _reach(self, start: int) -> set[int]:
        seen, waiting = {start}, [start]
        while waiting:
            new = [state for state in self._free[waiting.pop()] if state not in seen]
            seen.update(new)
            waiting += new
        return seen

    def _state(self) -> int:
        if len(self._tests) >= MAX_STATES:
            raise self._too_large()
        self._tests.append(None)
        self._targets.append(-1)
        self._free.append([])
        return len(self._tests) - 1

    def _too_large(self) -> InvalidRequest:
        return _wrong(self._pattern, len(self._pattern), "it is too large; repeat less")


def _nothing(_character: str) -> bool:
    return False


def _wrong(pattern: str, place: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"stop_regex: {what}, at character {place} of {reprlib.repr(pattern)}.", param="stop_regex")
