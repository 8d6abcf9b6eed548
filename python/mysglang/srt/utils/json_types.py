"""JSON names of a value's type, for error messages."""

from __future__ import annotations

_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def json_type(value: object) -> str:
    """Returns the JSON type of a value, as in `an array` or `null`; the Python type's name if JSON has no such type."""
    return _NAMES.get(type(value), type(value).__name__)
