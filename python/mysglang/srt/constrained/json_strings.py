"""Narrows the JSON strings of a model's own markup that xgrammar allows: a string with a bounded length could otherwise
contain control characters.

Works on the text of a grammar that xgrammar made of a structural tag. Knows no library.
"""

from __future__ import annotations

import re

NOT_PLAIN = r"\0-\x1f\"\\"
"""Characters that a JSON string holds only after a backslash."""

_ANY_IN_STRING = r"[^\"\\\r\n]"
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)", re.DOTALL)


def json_safe_in_markup(grammar: str) -> str:
    """Returns `grammar` with its strings that have no pattern limited to characters that JSON allows. Its escapes get a
    fixed length.

    The markup's own strings may hold anything, and stay as they are.
    """
    return of_fixed_length(grammar.replace(_ANY_IN_STRING, f"[^{NOT_PLAIN}]"))


def of_fixed_length(grammar: str) -> str:
    r"""Returns `grammar` with escapes of a fixed length. xgrammar writes é before an a as `\xe9a`, and would read that
    as one character.
    """
    return _ESCAPE.sub(_four_digits, grammar)


def _four_digits(escape: re.Match[str]) -> str:
    return rf"\u00{escape[1]}" if escape[1] else escape[0]
