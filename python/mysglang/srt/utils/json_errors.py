"""Errors of msgspec about a file or an option, in the words of its reader: keys and values, and no Python types."""

from __future__ import annotations

import re

import msgspec

_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<place>.*)`)?", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<given>[^`]+)`")
_OUT_OF_RANGE = re.compile(r"Expected `(?P<kind>[^`]+)` (?P<sign>[<>]=?) (?P<limit>\S+)")
_LENGTH = re.compile(r"Expected `(?P<kind>[^`]+)` of length (?:(?P<sign>[<>]=?) )?(?P<limit>\d+)(?:, got \d+)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def in_words(error: msgspec.MsgspecError) -> str:
    """Returns what is wrong as a clause, such as `vocab_size must be a whole number, not a text`.

    An error without a place is about the whole, which the clause calls `it`.
    """
    found = _PLACE.fullmatch(str(error))
    assert found is not None, "the pattern takes every text"
    what, place = found["what"], _place(found["place"] or "")
    if (wrong := _WRONG_TYPE.fullmatch(what)) is not None:
        given = "a fraction" if wrong["given"] == "float" else _types(wrong["given"])
        return f"{place} must be {_types(wrong['wanted'])}, not {given}"
    if (wrong := _LENGTH.fullmatch(what)) is not None:
        number = f"{_SIGNS[wrong['sign']]} {wrong['limit']}" if wrong["sign"] else wrong["limit"]
        return f"{place} must be {_types(wrong['kind'])} of length {number}"
    if (wrong := _OUT_OF_RANGE.fullmatch(what)) is not None:
        limit = wrong["limit"].removesuffix(".0")
        return f"{place} must be {_types(wrong['kind'])}, {_SIGNS[wrong['sign']]} {limit}"
    within = "" if place == "it" else f" in {place}"
    if (wrong := _MISSING.fullmatch(what)) is not None:
        return f"{wrong['key']} is missing{within}"
    if (wrong := _UNKNOWN.fullmatch(what)) is not None:
        return f"there is no key {wrong['key']}{within}"
    if (wrong := _VALUE.fullmatch(what)) is not None:
        return f"{place} cannot be {wrong['value']}"
    if what == "Input data was truncated":
        return "its JSON ends too early"
    if what.startswith("JSON is malformed: "):
        return f"it is no JSON: {what.removeprefix('JSON is malformed: ')}"
    return what if place == "it" else f"{place}: {what}"


def _place(path: str) -> str:
    """Returns a path of msgspec without its sign for the whole; an entry whose key it does not tell is `an entry`."""
    if path.endswith("[...]"):
        whole = path.removesuffix("[...]").removeprefix(".")
        return f"an entry of {whole}" if whole else "an entry"
    return path.removeprefix(".") or "it"


def _types(names: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in names.split(" | "))
