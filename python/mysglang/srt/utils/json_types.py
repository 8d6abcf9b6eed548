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
    """Returns `an array`, `null` and so on; the type's own name for what JSON does not have."""
    return _NAMES.get(type(value), type(value).__name__)
