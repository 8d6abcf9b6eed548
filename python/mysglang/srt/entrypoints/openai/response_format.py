"""`response_format`: which form OpenAI's clients want an answer to have, and the grammar that this is.

`strict` and the name of a schema change nothing: every answer keeps to its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest

FIELD = "response_format"


class TextFormat(StrictModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(StrictModel):
    """A JSON schema as OpenAI wraps it."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(True, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(StrictModel):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(StrictModel):
    """SGLang's: text with parts that keep to schemas, as `format` or, in the older way, as structures and triggers."""

    type: Literal["structural_tag"]
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    at_least_one: bool | None = None


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


def grammar_params(wanted: ResponseFormat | None, own: Mapping[str, str]) -> dict[str, str]:
    """The sampling parameters that say it. `own`: grammars that the client gave as such, by the parameter's name."""
    from_format = _params_of(wanted) if wanted is not None else {}
    if own and from_format:
        both = f"{FIELD} and {' and '.join(own)}"
        raise InvalidRequest(f"{both}: only one of them can say what the answer must be.", param=FIELD)
    return {**own, **from_format}


def names_of(wanted: ResponseFormat | None) -> dict[str, str]:
    """What these parameters are called by a client that wrote a response_format."""
    return dict.fromkeys(_params_of(wanted), FIELD) if wanted is not None else {}


def _params_of(wanted: ResponseFormat) -> dict[str, str]:
    match wanted:
        case JsonObjectFormat():
            return {"json_schema": '{"type":"object"}'}
        case JsonSchemaFormat(json_schema=named):
            return {"json_schema": _text(named.schema_)}
        case StructuralTagFormat():
            return {"structural_tag": _text(wanted.model_dump(exclude_none=True))}
    return {}


def _text(value: object) -> str:
    """As JSON, in the order in which it was written, which is that of the answer."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InvalidRequest(f"{FIELD} is nested too deeply.", param=FIELD) from None
