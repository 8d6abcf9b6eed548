r"""A client's `regex`, read as the language of whole answers, and written for a grammar library.

The libraries read regular expressions each in its own way, and some parts not at all. So every regex is read here, and
they get it in words on which they agree: a class without a name, a count, a choice. What cannot be read is refused.

The syntax is that of `patterns.py`, with the anchors and escapes that only Python has. A part that Python and ECMA-262
read in two ways (`{,3}`, `[]a]`) is refused.
"""

from __future__ import annotations

import re

from mysglang.srt.constrained.backend import GrammarError, JsonStyle
from mysglang.srt.constrained.json_schema.automata import is_empty
from mysglang.srt.constrained.json_schema.ebnf import ebnf
from mysglang.srt.constrained.json_schema.expressions import regex
from mysglang.srt.constrained.json_schema.grammar import Grammar
from mysglang.srt.constrained.json_schema.patterns import START, STOP, PatternReader, from_end_to_end
from mysglang.srt.constrained.json_schema.regular import Expr, text
from mysglang.srt.constrained.json_schema.rules import ROOT, word

MAX_COUNT = 999_999
"""Largest number in `{m,n}`. Long counts of one class cost the libraries little."""

_ANCHORS = {"A": START, "Z": STOP, "z": STOP}
_CONTROLS = {"a": 7, "e": 27}

_UP_TO = re.compile(r"\{,[0-9]+\}")
_NAMED_CLASS = re.compile(r"\[:\^?[a-z]+:\]")


def answers(pattern: str) -> Expr:
    """Returns the answers that a regex describes. Raises GrammarError, which names what is not supported, or says that
    there are none.
    """
    try:
        found = from_end_to_end(_RegexReader(pattern).whole())
        if is_empty(found):
            raise GrammarError("no text matches the pattern; a '$' before characters never does")
    except RecursionError:
        raise GrammarError("the pattern is nested too deeply") from None
    return found


def regex_grammar(pattern: str) -> Grammar:
    """Returns the regex as a grammar. Raises GrammarError as `answers` does."""
    return Grammar({ROOT: word(answers(pattern))})


def regex_as_ebnf(pattern: str) -> str:
    """Returns the regex as a grammar for xgrammar."""
    return ebnf(regex_grammar(pattern), JsonStyle())


def regex_in_rust(pattern: str) -> str:
    """Returns the regex in the words of Rust's `regex-syntax`, which llguidance and outlines-core read."""
    return regex(answers(pattern))


class _RegexReader(PatternReader):
    """A reader of one regex of a client."""

    max_count = MAX_COUNT

    def _count(self) -> tuple[int, int | None] | None:
        if found := _UP_TO.match(self._pattern, self._at):
            raise GrammarError(f"the pattern has {found[0]}; write {found[0].replace(',', '0,')}")
        return super()._count()

    def _set(self) -> Expr:
        first = self._at + (self._peek() == "^")
        if self._pattern.startswith("]", first) and "]" in self._pattern[first + 1 :]:
            raise GrammarError(r"the pattern has a ']' at the beginning of a class; write \] for the character")
        return super()._set()

    def _member(self) -> tuple[tuple[int, int], ...]:
        if found := _NAMED_CLASS.match(self._pattern, self._at):
            raise GrammarError(f"the pattern has the class {found[0]}, which is not supported")
        return super()._member()

    def _escape(self, *, in_set: bool = False) -> Expr:
        character = self._peek()
        if character in _ANCHORS and not in_set:
            self._at += 1
            return _ANCHORS[character]
        if character in _CONTROLS:
            self._at += 1
            return text(chr(_CONTROLS[character]))
        if self._take("U"):
            return self._character(8)
        return super()._escape(in_set=in_set)
