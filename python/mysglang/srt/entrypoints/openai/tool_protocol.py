"""Tools and the choice among them, as clients of the OpenAI API send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mysglang.srt.entrypoints.strict_model import StrictModel, not_here

MAX_NAME = 200
"""Characters of a function's name. OpenAI allows 64; clients of tool servers put prefixes before them."""


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Check the outline of a JSON schema for an object. Its content is checked where it is enforced."""
    if schema.get("type", "object") != "object":
        raise ValueError(f"must be the schema of an object, got type {schema['type']!r}")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, dict | bool) for value in properties.values()):
        raise ValueError("properties must be an object of schemas")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError("required must be a list of names")
    return schema


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
ObjectSchema = Annotated[dict[str, Any], AfterValidator(_object_schema)]


class FunctionDefinition(StrictModel):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: ObjectSchema = {}
    """JSON schema of its arguments; without one it takes any."""
    strict: bool = False
    """If true, the arguments must follow the schema; otherwise they only should."""


class Tool(StrictModel):
    """A tool: a function."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    unsupported = not_here("defer_loading", unless=(False,))

    def as_sent(self) -> dict[str, Any]:
        """Returns the fields that the client sent, without defaults, for the chat template."""
        return {"type": self.type, "function": self.function.model_dump(exclude_unset=True)}


class FunctionName(StrictModel):
    """The name of a function."""

    name: str


class NamedToolChoice(StrictModel):
    """The one function that must be called."""

    type: Literal["function"] = "function"
    function: FunctionName
