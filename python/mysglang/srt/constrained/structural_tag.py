"""Structural tags: free text in which certain beginnings start a part that a grammar rules.

Clients write them in two ways: as `{"format": …}`, xgrammar's, and as `{"structures": […], "triggers": […]}`, the older
one. Here both become the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from mysglang.srt.constrained.backend import GrammarError


class _Structure(msgspec.Struct, frozen=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool


class _Older(msgspec.Struct, frozen=True):
    structures: list[_Structure]
    triggers: list[str]


@dataclass(frozen=True, slots=True)
class Tag:
    """`begin`, JSON of that schema, `end`; looked for as soon as `trigger` was said, with which `begin` starts."""

    trigger: str
    begin: str
    schema: dict[str, Any] | bool
    end: str


def with_format(text: str) -> dict[str, Any]:
    """The tag as `{"type": "structural_tag", "format": …}`. Raises GrammarError if it has not the form of either."""
    value = msgspec.json.decode(text)
    if "format" in value:
        return {"type": "structural_tag", "format": value["format"]}
    try:
        older = msgspec.convert(value, _Older)
    except msgspec.ValidationError as error:
        raise GrammarError(f"neither `format` nor well-formed `structures` and `triggers`: {error}") from None
    contents = [
        {
            "type": "tag",
            "begin": structure.begin,
            "content": {"type": "json_schema", "json_schema": structure.schema},
            "end": structure.end,
        }
        for structure in older.structures
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": older.triggers, "tags": contents},
    }


def json_tags(text: str) -> list[Tag]:
    """The tags of a format that is free text with triggered JSON. Raises GrammarError for any other format."""
    form = with_format(text)["format"]
    try:
        if form["type"] != "triggered_tags" or form.keys() - {"type", "triggers", "tags"}:
            raise GrammarError("this grammar backend knows the format `triggered_tags` only, without options")
        return [_tag(tag, form["triggers"]) for tag in form["tags"]]
    except (KeyError, TypeError, AttributeError):
        raise GrammarError("malformed format") from None


def _tag(tag: dict[str, Any], triggers: list[str]) -> Tag:
    content = tag["content"]
    if content["type"] != "json_schema":
        raise GrammarError("this grammar backend knows tags with `json_schema` content only")
    trigger = next((trigger for trigger in triggers if trigger and tag["begin"].startswith(trigger)), None)
    if trigger is None:
        raise GrammarError(f"no trigger starts the tag {tag['begin']!r}")
    return Tag(trigger, tag["begin"], content["json_schema"], tag["end"])
