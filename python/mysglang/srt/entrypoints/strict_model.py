"""StrictModel: a JSON object in which no field is ignored in silence: each is honoured, refused by name, or reported.

A known field that would change the answer and cannot be honoured is listed in `unsupported` and refused, unless its
value asks for nothing. A known field that cannot be honoured and does not change the answer is listed in `idle` and
reported. An unknown name is reported or refused: the `FieldReport` decides that, which is pydantic's validation
context. An explicit null is the default. Types are strict: "1" is no number, true no 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, LiteralString

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from mysglang.srt.entrypoints.field_bounds import MAX_FIELDS, bound
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import checkpoint
from mysglang.srt.messages.generate import REFUSED, FieldReport, asks_for_nothing

OFF: Sequence[object] = (False,)

UNSUPPORTED: LiteralString = "unsupported"
"""Type of pydantic's error for a field that is refused; its context has the field's name."""


def empty(kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Returns the default of a field that holds several values.

    It is made again each time: pydantic would copy a given one deeply for each request, which costs several times more.
    """
    return Field(default_factory=kind, json_schema_extra={"default": kind()})


def not_here(*fields: str, unless: Sequence[object] = ()) -> dict[str, Sequence[object]]:
    """Returns rows of an `unsupported` or `idle` table. `unless`: values without effect, in addition to null, false and
    empty ones.
    """
    return dict.fromkeys(fields, unless)


class StrictModel(BaseModel):
    """Base of every request body."""

    # The first body of a kind builds its validator: that takes up to ten milliseconds, and few kinds are ever sent to
    # one server. Pydantic lets one thread at a time do it.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    aliases: ClassVar[Mapping[str, str]] = {}
    """Name that other servers have for a field -> our name. A body may not hold both with different values."""
    unsupported: ClassVar[Mapping[str, Sequence[object]]] = {}
    """Field that is refused -> the values with which it may be sent all the same."""
    idle: ClassVar[Mapping[str, Sequence[object]]] = {}
    """Field that is taken and has no effect -> the values with which it is not reported."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Declared fields that are taken and change nothing: a client's own bookkeeping, which is not reported."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema of the fields, in which every list and object has a greatest length."""
        return bound(handler(source))

    @classmethod
    def translated(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Translates values of other servers' clients to ours. Nothing is checked yet."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, data: Any, info: ValidationInfo) -> Any:
        """Handles the fields that this server refuses or ignores, and returns those that pydantic must check."""
        checkpoint()
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:
            # Each unknown field would make an error.
            raise ValueError(f"must have at most {MAX_FIELDS} fields, got {len(data)}")
        report: FieldReport = REFUSED if info.context is None else info.context
        known, settled = _names(cls), {}
        data = cls.translated(data)
        for given, value in data.items():
            name = cls.aliases.get(given, given)
            if name is not given:
                _refuse_unless_alike(given, name, data)
            if name in known:
                if value is not None:
                    settled[name] = value
            elif name in cls.unsupported:
                _refuse_unless_neutral(name, value, cls.unsupported[name])
            elif name in cls.idle:
                if not asks_for_nothing(value, cls.idle[name]):
                    report.idle(name)
            elif not report.unknown(name):
                settled[name] = value  # pydantic refuses it, and says where it stands
        return settled


def sent_names(aliases: Mapping[str, str], data: Mapping[str, object]) -> dict[str, str]:
    """Maps our names of fields that `data` does not hold to the first other name of `aliases` under which it does."""
    if aliases.keys().isdisjoint(data):
        return {}  # as in most requests
    return {aliases[given]: given for given in [*aliases][::-1] if given in data and aliases[given] not in data}


@cache
def _names(model: type[StrictModel]) -> frozenset[str]:
    """Returns the fields of `model`, as clients call them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _refuse_unless_alike(given: str, name: str, data: Mapping[str, object]) -> None:
    value, ours = data[given], data.get(name)
    if value is not None and ours is not None and value != ours:
        raise InvalidRequest(f"{given} and {name} mean the same and differ; send {name} alone.", param=given)


def _refuse_unless_neutral(name: str, value: object, neutral: Sequence[object]) -> None:
    if asks_for_nothing(value, neutral):
        return
    allowed = f", except {' or '.join(map(repr, neutral))}" if neutral else ""
    # Pydantic knows where this object is in the body.
    raise PydanticCustomError(
        UNSUPPORTED, "not supported by this server{allowed}.", {"field": name, "allowed": allowed}
    )
