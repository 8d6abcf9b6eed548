"""Syntaxes in which models write the arguments of calls, where that is not JSON: that of Gemma 4, and Python's.

Values have the types and texts that they have in JSON. What is written here is read by the detectors of
`function_call`, so that a call keeps to its schema once it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.document import Json
from mysglang.srt.constrained.json_schema.encoding import PLAIN
from mysglang.srt.constrained.json_schema.regular import (
    ANYTHING,
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
    rep,
    text,
)
from mysglang.srt.constrained.json_schema.rules import quoted, shared, word
from mysglang.srt.constrained.json_schema.syntax import JSON_SYNTAX, Syntax
from mysglang.srt.utils.schema_words import PYTHON_PARAMETER

_LETTERS = ((65, 90), (95, 95), (97, 122))
_WORD = cat(char_class(_LETTERS), rep(char_class([*_LETTERS, (48, 57)])))
"""A name that needs no quotes."""

GEMMA_QUOTE = '<|"|>'
_GEMMA_TEXT = inverse(cat(ANYTHING, text(GEMMA_QUOTE), ANYTHING))
_IN_NO_BARE_NAME = frozenset(":,{}[]<")
LONGEST_BARE = 128
"""Characters of a name without quotes. Much longer ones would not be read as names."""
_SHORT_WORD = cat(char_class(_LETTERS), rep(char_class([*_LETTERS, (48, 57)]), 0, 31))
"""A name without quotes that the schema does not mention. Its length is counted, so it is short."""


class GemmaSyntax(Syntax):
    """Gemma 4: `{a:<|"|>text<|"|>,b:[1,true]}`, with names in the order of the alphabet, as its template writes them.
    A string has no escapes, and cannot contain the quotes. A name has quotes if it could not be read without.
    """

    space, comma, colon = EMPTY, word(text(",")), word(text(":"))

    def place(self, name: str) -> str:
        return name.lower()

    def key(self, name: str) -> Expr:
        if GEMMA_QUOTE in name:
            raise GrammarError(f"the property {name!r} cannot be written in the syntax of Gemma 4")
        bare = name and name.strip() == name and len(name) <= LONGEST_BARE and _IN_NO_BARE_NAME.isdisjoint(name)
        return word(text(name) if bare else self._quoted(name))

    def any_key(self, language: Expr) -> Expr:
        return alt(word(both(language, _SHORT_WORD)), self.string(language))

    def string(self, language: Expr) -> Expr:
        if _is_bounded(language):  # without the quotes' first character, for which nothing must be remembered
            letter = _common(language.parts[0].ranges, all_but(text("<").ranges))
            return word(self._between(rep(letter, *language.bounds)))
        found = self._between(both(language, _GEMMA_TEXT))
        return shared(found) if language == ANYTHING else word(found)

    def scalar(self, raw: Json) -> Expr:
        return self._quoted(raw) if isinstance(raw, str) else super().scalar(raw)

    def _quoted(self, value: str) -> Expr:
        return NONE if GEMMA_QUOTE in value else self._between(text(value))

    def _between(self, inner: Expr) -> Expr:
        return cat(text(GEMMA_QUOTE), inner, text(GEMMA_QUOTE))


_ESCAPES = char_class((ord(one), ord(one)) for one in "\\\"'bfnrt")
_QUOTES: Mapping[str, Ranges] = {'"': PLAIN, "'": ((0x20, 0x26), (0x28, 0x5B), *PLAIN[2:])}
"""Python's quotes -> the characters that stand between them without an escape."""
_PYTHON_TEXT = alt(
    *(
        cat(text(quote), rep(alt(char_class(plain), cat(text("\\"), _ESCAPES))), text(quote))
        for quote, plain in _QUOTES.items()
    )
)
"""A string of which nothing is asked."""
_PYTHON_WORDS: Mapping[bool | None, str] = {True: "True", False: "False", None: "None"}


class PythonSyntax(Syntax):
    """Python: `{"a": 'text', "b": [1, True]}`. A string of bounded length has no escapes. One with a pattern has some
    only between double quotes.
    """

    space = EMPTY
    comma = word(cat(text(","), rep(text(" "), 0, 1)))
    colon = word(cat(text(":"), rep(text(" "), 0, 1)))

    def key(self, name: str) -> Expr:
        return word(self._quoted(name))

    def any_key(self, language: Expr) -> Expr:
        return self.string(language)

    def string(self, language: Expr) -> Expr:
        if language == ANYTHING:
            return shared(_PYTHON_TEXT)
        if _is_bounded(language):
            (letter,), bounds = language.parts, language.bounds
            plain = {quote: rep(_common(letter.ranges, ranges), *bounds) for quote, ranges in _QUOTES.items()}
            return word(alt(*(cat(text(quote), inner, text(quote)) for quote, inner in plain.items())))
        single = both(language, rep(char_class(_QUOTES["'"])))
        return alt(quoted(language), word(cat(text("'"), single, text("'"))))

    def scalar(self, raw: Json) -> Expr:
        if isinstance(raw, str):
            return self._quoted(raw)
        written = super().scalar(raw)
        return alt(text(_PYTHON_WORDS[raw]), written) if raw is None or isinstance(raw, bool) else written

    def _quoted(self, value: str) -> Expr:
        double = json.dumps(value, ensure_ascii=False)
        single = f"'{value}'" if double[1:-1] == value and "'" not in value else double
        return alt(text(double), text(single))


class PythonCallSyntax(PythonSyntax):
    """The parameters between the parentheses of a call: `a="text", b=[1, True]`."""

    colon = word(text("="))

    def key(self, name: str) -> Expr:
        if not re.fullmatch(PYTHON_PARAMETER, name):
            raise GrammarError(f"the parameter {name!r} cannot be written in Python")
        return word(text(name))

    def any_key(self, language: Expr) -> Expr:
        return word(both(language, _WORD))


class PythonArgumentsSyntax(PythonSyntax):
    """The arguments of a call, with Python values."""

    outer = PythonCallSyntax()


SYNTAXES: Mapping[str, Syntax] = {
    "json": JSON_SYNTAX,
    "gemma4": GemmaSyntax(),
    "python": PythonArgumentsSyntax(),
}
"""Syntaxes by the names that structural tags have for them, as `style`."""


def _is_bounded(language: Expr) -> bool:
    """True for texts whose characters are of one class, and of which only the length is limited."""
    return language.kind == "rep" and language.parts[0].kind == "class" and language != ANYTHING


def _common(ranges: Ranges, others: Ranges) -> Expr:
    """Returns the class of the characters that two classes have in common."""
    return char_class((max(a, c), min(b, d)) for a, b in ranges for c, d in others if max(a, c) <= min(b, d))
