"""Reads JSON from a TextReader, and passes it on as it arrives: finds where a value ends, and checks it.

The structure is checked; numbers and words are passed on as they stand. A control character in a string, which JSON
forbids and models write all the same, is escaped. Depth and length are bounded by the text alone: nothing recurses.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from mysglang.srt.parser.text_reader import SPACE, Into, Steps, TextReader

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[-+.\w]*")
_CLOSER = {"{": "}", "[": "]"}


class _Want(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    NEXT_OR_END = auto()


def json_value(reader: TextReader, into: Into) -> Steps[bool]:
    """Passes on one value as it arrives. Returns False at the first character that cannot be part of a value; it is not
    read.

    Raises EndOfText if the text ends within the value; all that came was given away. A scalar ends before the next
    character, so that one must come.
    """
    closers: list[str] = []
    want = _Want.VALUE
    while True:
        char = yield from reader.peek()
        if char.isspace():
            yield from reader.run(SPACE, into)
        elif closers and char == closers[-1] and want not in (_Want.VALUE, _Want.KEY):
            into((yield from reader.read(1)))
            closers.pop()
            want = _Want.NEXT_OR_END
        elif want is _Want.NEXT_OR_END:
            if char != ",":
                return False
            into((yield from reader.read(1)))
            want = _Want.KEY if closers[-1] == "}" else _Want.VALUE
        elif want in (_Want.KEY, _Want.KEY_OR_END):
            if not (yield from _key(reader, into)):
                return False
            want = _Want.VALUE
        elif char in _CLOSER:
            into((yield from reader.read(1)))
            closers.append(_CLOSER[char])
            want = _Want.KEY_OR_END if char == "{" else _Want.VALUE_OR_END
        else:
            if not (yield from _simple_value(reader, char, into)):
                return False
            want = _Want.NEXT_OR_END
        if want is _Want.NEXT_OR_END and not closers:
            return True


def json_string(reader: TextReader) -> Steps[str | None]:
    """Returns the next value, a string, decoded. None if it is no string, or has an invalid escape."""
    if (yield from reader.peek()) != '"':
        return None
    parts: list[str] = []
    yield from _string(reader, parts.append)
    try:
        decoded = json.loads("".join(parts))
    except ValueError:
        return None
    return decoded if isinstance(decoded, str) else None


def _key(reader: TextReader, into: Into) -> Steps[bool]:
    """Returns a key and its colon."""
    if (yield from reader.peek()) != '"':
        return False
    yield from _string(reader, into)
    yield from reader.run(SPACE, into)
    if (yield from reader.peek()) != ":":
        return False
    into((yield from reader.read(1)))
    return True


def _simple_value(reader: TextReader, char: str, into: Into) -> Steps[bool]:
    if char == '"':
        yield from _string(reader, into)
        return True
    if not (char.isascii() and (char.isalnum() or char in "+-.")):
        return False
    yield from reader.run(_SCALAR, into)
    return True


def _string(reader: TextReader, into: Into) -> Steps[None]:
    """Returns a string, from quote to quote."""
    into((yield from reader.read(1)))
    while True:
        yield from reader.run(_PLAIN, into)
        char = yield from reader.peek()
        if char == "\\":
            # Its second half may be a quote, and ends nothing.
            into((yield from reader.read(1)))
            yield from reader.peek()
        into(_escaped((yield from reader.read(1))))
        if char == '"':
            return


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char < " " else char
