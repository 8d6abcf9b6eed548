"""Structural tags: free text in which certain beginnings start a part that a grammar rules.

Clients write them in two ways: as `{"format": …}`, xgrammar's, and as `{"structures": […], "triggers": […]}`, the older
one. Here both become the first. Beside a format, `"special_tokens": true` says that special tokens are text, and
`shared` has parts by name: `{"type": "shared", "name": …}` stands for one of them, as often as the format needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

_TOKENS = {"token", "exclude_tokens", "trigger_tokens"}
"""Keys under which a part names tokens, by id or by text."""

MAX_BEGIN = 100
"""Characters of a tag's beginning that an error quotes."""


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
        shared = value.get("shared", {})
        if not isinstance(shared, dict):
            raise GrammarError("shared must be an object of parts by name")
        return {
            "type": "structural_tag",
            "format": _with_shared(value["format"], shared) if shared else value["format"],
        }
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


def _with_shared(part: Any, shared: Mapping[str, Any]) -> Any:
    """Returns `part` with the shared parts in place, each time the same object. They cannot contain one another."""
    if isinstance(part, list):
        return [_with_shared(inner, shared) for inner in part]
    if not isinstance(part, dict) or _has_grammar(part):
        return part
    if part.get("type") != "shared":
        return {key: _with_shared(inner, shared) for key, inner in part.items()}
    name = part.get("name")
    if not isinstance(name, str) or name not in shared:
        raise GrammarError(f"there is no shared part named {name!r}")
    return shared[name]


def _has_grammar(part: dict[str, Any]) -> bool:
    return GRAMMAR_OF.get(str(part.get("type"))) in part


def special_tokens(text: str) -> bool:
    """Returns True if special tokens are text in this tag. They are never allowed in others. Raises GrammarError."""
    found = msgspec.json.decode(text).get("special_tokens", False)
    if not isinstance(found, bool):
        raise GrammarError("special_tokens must be true or false")
    return found


def with_grammars(tag: dict[str, Any], grammar_of: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Returns `tag` with a grammar in place of each JSON schema and each regex in its format.

    grammar_of: the part, such as `{"type": "json_schema", "json_schema": …}` -> EBNF with a rule `root`. It is called
    once for a part that is shared.
    """
    made: dict[int, str] = {}

    def once(part: dict[str, Any]) -> str:
        if id(part) not in made:
            made[id(part)] = grammar_of(part)
        return made[id(part)]

    return {**tag, "format": _with_grammars(tag["format"], once)}


def _with_grammars(part: Any, grammar_of: Callable[[dict[str, Any]], str]) -> Any:
    if isinstance(part, list):
        return [_with_grammars(inner, grammar_of) for inner in part]
    if not isinstance(part, dict):
        return part
    if _has_grammar(part):
        return {"type": "grammar", "grammar": grammar_of(part)}
    with in_tag(part.get("begin")):
        return {key: _with_grammars(inner, grammar_of) for key, inner in part.items()}


def with_token_ids(part: Any, id_of: Callable[[str], int]) -> Any:
    """Returns a part of a format with ids in place of the texts of tokens."""
    if isinstance(part, list):
        return [with_token_ids(inner, id_of) for inner in part]
    if not isinstance(part, dict) or _has_grammar(part):
        return part
    found = {key: with_token_ids(inner, id_of) for key, inner in part.items()}
    for key in _TOKENS & found.keys():
        found[key] = _ids(found[key], id_of)
    if found.get("type") == "token_dispatch" and isinstance(rules := found.get("rules"), list):
        found["rules"] = [[_ids(rule[0], id_of), *rule[1:]] if isinstance(rule, list) else rule for rule in rules]
    return found


def _ids(tokens: Any, id_of: Callable[[str], int]) -> Any:
    if isinstance(tokens, list):
        return [_ids(token, id_of) for token in tokens]
    return id_of(tokens) if isinstance(tokens, str) else tokens


@contextmanager
def in_tag(begin: object) -> Iterator[None]:
    """Context in which errors name the tag that they are in by the beginning of its text, if it has one."""
    try:
        yield
    except GrammarError as error:
        if not isinstance(begin, str) or not begin:
            raise
        raise GrammarError(f"behind {begin[:MAX_BEGIN]!r}: {error}") from None


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
