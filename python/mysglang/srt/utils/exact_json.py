"""loads: JSON by orjson, which changes no integer.

orjson reads an integer beyond 64 bits as the nearest float: 2^64 + 1 becomes 2^64. Here such an integer is refused,
unless the float has just its value, such as 10^20, which JavaScript writes for 1e20.
"""

from __future__ import annotations

import re

import orjson

_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * 19
"""Any so many digits in a row, as zeros. To look for them takes a twentieth of the time that the expression below does:
four microseconds for 5 KB of text.
"""
_CANDIDATE = re.compile(rb"(?<![^\s,:\[])-?[0-9]{19,}(?![^\s,\]}])")
"""Digits in the place of an integer, which texts seldom contain."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?', re.DOTALL)
"""A string, or a number with its digits before the point."""
SHOWN = 40


class InexactInteger(ValueError):
    """An integer that a float would change. The message is a clause about it."""

    def __init__(self, digits: str) -> None:
        shown = digits if len(digits) <= SHOWN else f"{digits[:SHOWN]}..., with {len(digits)} digits,"
        super().__init__(f"the integer {shown} has more than 64 bits and would be rounded; send it as a string")


def loads(text: bytes | memoryview) -> object:
    """Returns the value. Raises orjson.JSONDecodeError, or InexactInteger."""
    value: object = orjson.loads(text)
    if _MANY_DIGITS in bytes(text).translate(_AS_ZEROS) and _CANDIDATE.search(text) is not None:
        _check_integers(text)
    return value


def _check_integers(text: bytes | memoryview) -> None:
    """Raises InexactInteger for an integer of valid JSON that becomes another float."""
    for token in _TOKEN.finditer(text):
        digits = token[1]
        if digits is None or token[0] != digits:
            continue  # a string, or a number with a point or an exponent
        number = int(digits)
        # An integer beyond all floats is not valid to orjson.
        if not -(1 << 63) <= number < 1 << 64 and float(number) != number:
            raise InexactInteger(bytes(digits).decode())
