"""The ways to write the characters of a JSON string.

Each character has one way to be written here, so that a language and its complement stay apart when they are written.
Only strings of which nothing is asked but a length may use the other escapes too.
"""

from __future__ import annotations

from functools import lru_cache

from mysglang.srt.constrained.json_schema.regular import (
    ANY,
    Expr,
    Ranges,
    alt,
    both,
    cat,
    char_class,
    inverse,
    rep,
    text,
)

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_HEX = char_class([(48, 57), (65, 70), (97, 102)])
PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""Characters that stand unescaped in a JSON string."""


@lru_cache(1 << 12)
def written(expr: Expr) -> Expr:
    """Returns the texts that are in a JSON string for the texts of `expr`."""
    match expr.kind:
        case "class":
            return _class(expr.ranges)
        case "cat":
            return cat(*map(written, expr.parts))
        case "alt":
            return alt(*map(written, expr.parts))
        case "rep":
            return rep(written(expr.parts[0]), *expr.bounds)
        case "and":
            return both(*map(written, expr.parts))
        case "not":
            return both(rep(written(ANY)), inverse(written(expr.parts[0])))
    return expr


@lru_cache(1 << 12)
def _class(ranges: Ranges) -> Expr:
    plain = [(max(a, c), min(b, d)) for a, b in ranges for c, d in PLAIN if max(a, c) <= min(b, d)]
    special = [code for code in (*range(0x20), 34, 92) if any(a <= code <= b for a, b in ranges)]
    short = char_class((ord(_SHORT[code]), ord(_SHORT[code])) for code in special if code in _SHORT)
    options = [char_class(plain)]
    if short.kind != "none":
        options.append(cat(text("\\"), short))
    for high in (0, 1):
        low = [ord(f"{code & 15:x}") for code in special if code not in _SHORT and code >> 4 == high]
        if low:
            options.append(cat(text(f"\\u00{high}"), char_class((code, code) for code in low)))
    return alt(*options)


def _unicode_escape() -> Expr:
    """Returns what follows the backslash: `u` and four digits that are no surrogate, or two surrogates that make one
    character.
    """
    letters_d = char_class([(68, 68), (100, 100)])
    no_d = char_class([(48, 57), (65, 67), (69, 70), (97, 99), (101, 102)])
    below_8, from_8, above_b = char_class([(48, 55)]), _of("89abAB"), _of("cdefCDEF")
    alone = alt(cat(no_d, _HEX), cat(letters_d, below_8))
    pair = cat(letters_d, from_8, _HEX, _HEX, text("\\u"), letters_d, above_b)
    return cat(text("u"), alt(alone, pair), _HEX, _HEX)


def _of(characters: str) -> Expr:
    return char_class((ord(character), ord(character)) for character in characters)


ANY_ESCAPE = cat(text("\\"), alt(_of('"\\/bfnrt'), _unicode_escape()))
ANY_CHARACTER = alt(char_class(PLAIN), ANY_ESCAPE)
"""A character of a string of which nothing is asked."""
