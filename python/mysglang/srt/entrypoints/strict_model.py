"""StrictModel: a JSON object in which every field is honoured or refused by name, none ignored.

Unknown fields are refused; fields that are known elsewhere and not served here are listed in `unsupported` and refused
unless their value asks for nothing; an explicit null is the default. Types are strict: "1" is no number, true no 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mysglang.srt.errors import InvalidRequest

OFF: Sequence[object] = (False,)


def empty(kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """The default of a field that holds several, if nothing is sent. Made anew: pydantic would copy a given one, deeply
    and at several times the cost, for each request.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


def not_here(*fields: str, unless: Sequence[object] = ()) -> dict[str, Sequence[object]]:
    """Rows of an `unsupported` table: `fields` are refused, but for null and the values that ask for nothing."""
    return dict.fromkeys(fields, unless)


class StrictModel(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    unsupported: ClassVar[Mapping[str, Sequence[object]]] = {}
    """Field -> the values with which it may be sent all the same."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Fields that are taken and change nothing: a client's own bookkeeping."""

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        settled = {}
        for name, value in data.items():
            if name in cls.unsupported:
                _refuse_unless_neutral(name, value, cls.unsupported[name])
            elif value is not None or name not in cls.model_fields:
                settled[name] = value
        return settled


def _refuse_unless_neutral(name: str, value: object, neutral: Sequence[object]) -> None:
    # 0 == False in Python, but not in JSON.
    if value is None or any(value == known and type(value) is type(known) for known in neutral):
        return
    allowed = f", except {' or '.join(map(repr, neutral))}" if neutral else ""
    raise InvalidRequest(f"{name}: not supported by this server{allowed}.", param=name)
