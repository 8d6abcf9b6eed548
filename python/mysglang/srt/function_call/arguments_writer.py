"""ArgumentsWriter: parameters one by one -> the text of a JSON object, for formats that write no JSON.

A value without quotes means what its parameter is declared to be; of one that is declared nothing, JSON if it is JSON
and else a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mysglang.srt.function_call import python_literal

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_TYPES: dict[type, str] = {
    str: "string",
    bytes: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}


class ArgumentsWriter:
    """Writes one call's arguments through `into`, as they come."""

    def __init__(self, into: Callable[[str], None]) -> None:
        self._into = into
        self._begun = False

    def key(self, name: str) -> None:
        """Writes the name of the next parameter. The caller must write its value next."""
        self._into((", " if self._begun else "{") + json_text(name) + ": ")
        self._begun = True

    def value(self, text: str) -> None:
        """Writes a value, given as JSON text."""
        self._into(text)

    def string_piece(self, text: str) -> None:
        """Writes the next characters of a string. `value` writes the quotes around them."""
        self._into(json_text(text)[1:-1])

    def end(self) -> None:
        """Ends the arguments: no parameter follows."""
        self._into("}" if self._begun else "{}")


def json_text(value: object) -> str:
    """Returns `value` as JSON that UTF-8 can encode: half a surrogate pair stays an escape, and bytes are the text that
    they encode. Raises ValueError, TypeError.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_text_of)
    return text if text.isascii() or _encodable(text) else json.dumps(value, allow_nan=False, default=_text_of)


def unquoted(text: str, types: frozenset[str]) -> str:
    """Returns the JSON text of a value written without quotes, for a parameter that may have these `types`."""
    bare = text.strip()
    for read in (_as_json, _as_word, _as_bare_literal, _as_escaped_json):
        found = read(bare)
        if found is not None and _allowed(found[1], types):
            return found[0]
    return json_text(text)


def literal(source: str) -> str:
    """Returns the JSON text of a Python literal; for any other source, a JSON string with this source."""
    bare = source.strip()
    found = _as_word(bare) or _as_literal(bare)
    return json_text(source) if found is None else found[0]


def _as_json(text: str) -> tuple[str, str] | None:
    """Returns (JSON text, its type), or None. The text is kept as it stands: a number may have more digits than a
    float.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text, _type_of(value)


def _as_word(text: str) -> tuple[str, str] | None:
    word = _WORDS.get(text)
    return None if word is None else (word, "null" if word == "null" else "boolean")


def _as_literal(text: str) -> tuple[str, str] | None:
    try:
        value = python_literal.read(text)
        return json_text(value), _type_of(value)
    except (ValueError, TypeError, RecursionError):
        return None


def _as_bare_literal(text: str) -> tuple[str, str] | None:
    """Reads a literal, but no string with a prefix: in a format without quotes, that is a text as it stands."""
    found = _as_literal(text)
    return found if found is None or found[1] != "string" or text[:1] in "\"'" else None


def _as_escaped_json(text: str) -> tuple[str, str] | None:
    r"""Returns an array or object whose quotes and line breaks the model has escaped once too often: `[\"a\"]`."""
    if text[:1] not in ("[", "{") or "\\" not in text:
        return None
    try:
        value = json.loads(json.loads(f'"{text}"', strict=False), strict=False, parse_constant=_refuse)
        return json_text(value), _type_of(value)
    except (ValueError, RecursionError):
        return None


def _type_of(value: object) -> str:
    return "array" if isinstance(value, tuple) else _TYPES.get(type(value), "null")


def _allowed(found: str, types: frozenset[str]) -> bool:
    """True if a value of this type is allowed. Without a declared type, any value except a string is."""
    if not types:
        return found != "string"
    return found in types or (found == "integer" and "number" in types) or types.isdisjoint(_TYPES.values())


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text_of(value: object) -> str:
    """Returns the text of bytes in UTF-8. Raises TypeError for all that JSON cannot say."""
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(type(value).__name__)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
