"""`response_format`: which form OpenAI's clients want an answer to have, and the grammar that this is.

`strict` and the name of a schema change nothing: every answer keeps to its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, model_validator

from mysglang.srt.entrypoints.strict_model import StrictModel, not_here
from mysglang.srt.errors import InvalidRequest

FIELD = "response_format"


class TextFormat(StrictModel):
    """Response format: any text."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """Response format: any JSON object; with llama.cpp's `schema`, one that satisfies it."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class NamedSchema(StrictModel):
    """A JSON schema with a name, in OpenAI's `json_schema` object."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(True, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(StrictModel):
    """Response format: JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(StrictModel):
    """Response format of SGLang: text with parts that follow schemas, as `format` or, in the older way, as structures
    and triggers.
    """

    type: Literal["structural_tag"]
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    at_least_one: bool | None = None


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


def grammar_params(wanted: ResponseFormat | None, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the sampling parameters for a response format. `own`: grammars that the client gave directly, by the
    parameter's name.
    """
    from_format = _params_of(wanted) if wanted is not None else {}
    if own and from_format:
        both = f"{FIELD} and {' and '.join(own)}"
        raise InvalidRequest(f"{both}: only one of them can say what the answer must be.", param=FIELD)
    return {**own, **from_format}


def names_of(wanted: ResponseFormat | None) -> dict[str, str]:
    """Returns parameter -> the client's name for it, if the client sent a response_format."""
    return dict.fromkeys(_params_of(wanted), FIELD) if wanted is not None else {}


def _params_of(wanted: ResponseFormat) -> dict[str, str]:
    match wanted:
        case JsonObjectFormat(schema_=schema):
            return {"json_schema": '{"type":"object"}' if schema is None else schema_text(schema)}
        case JsonSchemaFormat(json_schema=named):
            return {"json_schema": schema_text(named.schema_)}
        case StructuralTagFormat():
            return {"structural_tag": schema_text(wanted.model_dump(exclude_none=True))}
    return {}


def schema_text(value: object) -> str:
    """Returns the schema as JSON, in the order in which it was written, which is the order of the answer."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidRequest(f"{FIELD} is nested too deeply.", param=FIELD) from None


class StructuredOutputs(StrictModel):
    """vLLM's structured outputs: one of these fields says what the answer must be."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
    idle = not_here("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "disable_fallback")

    @model_validator(mode="after")
    def _one_of_each(self) -> StructuredOutputs:
        both = {
            "regex and choice": self.regex is not None and self.choice is not None,
            "json and json_object": self.json_ is not None and self.json_object,
        }
        for names, given in both.items():
            if given:
                message = f"structured_outputs: only one of {names} can say what the answer must be."
                raise InvalidRequest(message, param="structured_outputs")
        return self

    def grammars(self) -> dict[str, str]:
        """Returns each grammar by the name of its sampling parameter."""
        given = {
            "json_schema": '{"type":"object"}' if self.json_object and self.json_ is None else as_schema(self.json_),
            "regex": self.regex if self.choice is None else choice_regex(self.choice),
            "ebnf": self.grammar,
            "structural_tag": self.structural_tag,
        }
        return {name: text for name, text in given.items() if text is not None}


def as_schema(schema: dict[str, Any] | str | None) -> str | None:
    """Returns a JSON schema as text, in whichever form it was sent."""
    return schema if schema is None or isinstance(schema, str) else schema_text(schema)


def choice_regex(texts: Sequence[str]) -> str:
    """Returns the regular expression of exactly these texts. Raises InvalidRequest if there are none."""
    if not texts:
        raise InvalidRequest("guided_choice: must have at least one text.", param="guided_choice")
    return "|".join("".join(_ESCAPED.get(character, character) for character in text) for text in texts)


_ESCAPED = {character: f"\\{character}" for character in ".^$*+?{}[]|()\\"} | {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
"""Characters with a meaning in a regular expression, and those that would break a line of a log. All others, NUL too,
stand for themselves.
"""
