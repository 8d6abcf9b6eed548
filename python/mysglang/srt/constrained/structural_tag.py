"""Structural tags: free text in which certain beginnings start a part that a grammar rules.

Clients write them in two ways: as `{"format": …}`, xgrammar's, and as `{"structures": […], "triggers": […]}`, the older
one. Here both become the first. Beside a format, `"special_tokens": true` says that special tokens are text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mysglang.srt.constrained.backend import GrammarError

GRAMMAR_OF = {
    "json_schema": "json_schema",
    "qwen_xml_parameter": "json_schema",
    "regex": "pattern",
    "grammar": "grammar",
}
"""Types of parts that keep to a grammar -> the key under which they have it."""


class _Structure(msgspec.Struct, frozen=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool


class _Older(msgspec.Struct, frozen=True):
    structures: list[_Structure]
    triggers: list[str]
    at_least_one: bool = False


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag: the text `begin`, then JSON that matches the schema, then the text `end`. `begin` starts with `trigger`;
    once the model has written `trigger`, the rest of the tag is enforced."""

    trigger: str
    begin: str
    schema: dict[str, Any] | bool
    end: str


def with_format(text: str) -> dict[str, Any]:
    """Returns the tag as `{"type": "structural_tag", "format": …}`. Raises GrammarError if the text has neither
    form.
    """
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
    form: dict[str, Any] = {"type": "triggered_tags", "triggers": older.triggers, "tags": contents}
    if older.at_least_one:
        form["at_least_one"] = True
    return {"type": "structural_tag", "format": form}


def special_tokens(text: str) -> bool:
    """Returns True if special tokens are text in this tag. They are never allowed in others. Raises GrammarError."""
    found = msgspec.json.decode(text).get("special_tokens", False)
    if not isinstance(found, bool):
        raise GrammarError("special_tokens must be true or false")
    return found


def with_grammars(tag: dict[str, Any], grammar_of: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Returns `tag` with a grammar in place of each JSON schema and each regex in its format.

    grammar_of: the part, such as `{"type": "json_schema", "json_schema": …}` -> EBNF with a rule `root`.
    """
    return {**tag, "format": _with_grammars(tag["format"], grammar_of)}


def _with_grammars(part: Any, grammar_of: Callable[[dict[str, Any]], str]) -> Any:
    if isinstance(part, list):
        return [_with_grammars(inner, grammar_of) for inner in part]
    if not isinstance(part, dict):
        return part
    if GRAMMAR_OF.get(str(part.get("type"))) in part:
        return {"type": "grammar", "grammar": grammar_of(part)}
    return {key: _with_grammars(inner, grammar_of) for key, inner in part.items()}


def json_tags(text: str) -> list[Tag]:
    """Returns the tags of a format that is free text with triggered JSON. Raises GrammarError for any other format."""
    form = with_format(text)["format"]
    if special_tokens(text):
        raise GrammarError("this grammar backend does not know `special_tokens`")
    try:
        if form["type"] != "triggered_tags" or form.keys() - {"type", "triggers", "tags"}:
            raise GrammarError("this grammar backend knows the format `triggered_tags` only, without options")
        return [_tag(tag, form["triggers"]) for tag in form["tags"]]
    except (KeyError, TypeError, AttributeError):
        raise GrammarError("malformed format") from None


def _tag(tag: dict[str, Any], triggers: list[str]) -> Tag:
    content = tag["content"]
    if content["type"] != "json_schema" or content.get("style", "json") != "json":
        raise GrammarError("this grammar backend knows tags with `json_schema` content only, written as JSON")
    trigger = next((trigger for trigger in triggers if trigger and tag["begin"].startswith(trigger)), None)
    if trigger is None:
        raise GrammarError(f"no trigger starts the tag {tag['begin']!r}")
    return Tag(trigger, tag["begin"], content["json_schema"], tag["end"])
