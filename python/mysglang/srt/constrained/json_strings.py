"""What xgrammar lets stand in a JSON string, narrowed to what may: a string with a bounded length or a pattern could
otherwise hold control characters, and one with a pattern such as `.` a quote that ends it, which is no JSON.

Works on the text of a grammar that xgrammar made of a schema. In it, classes that exclude characters, that take any, or
that take all of regular expressions' white space occur within strings alone. What a pattern names itself is left as it
is: `[!-~]` takes a quote. Knows no library.
"""

from __future__ import annotations

import re

NOT_PLAIN = r"\0-\x1f\"\\"
"""What stands in a JSON string only behind a backslash."""

_ANY = r"\0-\U0010ffff"
_ANY_IN_STRING = r"[^\"\\\r\n]"
_SPACES = re.compile(r"\\[fnrtv]")

# Literals are only passed over: a bracket in one begins no class.
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?P<inside>(?:[^\]\\]|\\.)*)\]', re.DOTALL)


def json_safe(grammar: str) -> str:
    """`grammar` with classes that JSON allows; the very same if it has no others."""
    narrowed = _TOKEN.sub(_narrowed, grammar)
    return grammar if narrowed == grammar else of_fixed_length(narrowed)


def json_safe_in_markup(grammar: str) -> str:
    """The same for a grammar in which JSON stands in the values of markup, whose own strings may hold anything: only
    strings without a pattern are narrowed. With escapes of a fixed length.
    """
    return of_fixed_length(grammar.replace(_ANY_IN_STRING, f"[^{NOT_PLAIN}]"))


def of_fixed_length(grammar: str) -> str:
    r"""`grammar` as xgrammar reads it: it writes é before an a as `\xe9a`, and reads that as one character."""
    return _ESCAPE.sub(_four_digits, grammar)


def _four_digits(escape: re.Match[str]) -> str:
    return rf"\u00{escape[1]}" if escape[1] else escape[0]


def _narrowed(token: re.Match[str]) -> str:
    inside = token["inside"]
    if inside is None or inside.startswith("^" + NOT_PLAIN):
        return token[0]
    if inside.startswith("^"):
        return f"[^{NOT_PLAIN}{inside[1:]}]"
    if inside == _ANY:
        return f"[^{NOT_PLAIN}]"
    if r"\f" in inside and r"\v" in inside:
        return f"[{_SPACES.sub('', inside)}]"
    return token[0]
