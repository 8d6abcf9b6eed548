"""From the bytes of a request to a checked object: bounded in size and depth, every fault named with its place.

Reading stops at the limit, before anything is parsed. JSON is strict: no NaN, no Infinity, no lone surrogates. Knows no
route's fields.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from mysglang.srt.entrypoints.headers import header
from mysglang.srt.errors import InvalidRequest, MysglangError
from mysglang.srt.utils.json_types import json_type

MAX_BODY_BYTES = 32 << 20
"""Room for a few million token ids, or 30 MB of text: more than any context, and quick to refuse."""

MAX_DEPTH = 64
"""Levels of lists and objects. Nothing we accept needs ten; templates and validators recurse over what clients send."""

MAX_FINDINGS = 8
"""Faults told at once."""

Model = TypeVar("Model", bound=BaseModel)


class ClientDisconnected(MysglangError):
    """The client left before its answer was complete."""


class BodyTooLarge(InvalidRequest):
    """The body is longer than the server reads."""


async def read_model(request: Request, model: type[Model]) -> Model:
    """The body of `request` as a checked `model`. Raises InvalidRequest that names the fields and what is wrong."""
    return validate(model, parse_json(await read_body(request)))


async def read_optional(request: Request, model: type[Model]) -> Model:
    """The same of a body that may be left out, since every field has a default."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return model()
    return await read_model(request, model)


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body, if it calls itself JSON and is no longer than `limit` bytes.

    Raises InvalidRequest for another content type, BodyTooLarge as soon as the excess is known, ClientDisconnected.
    """
    require_json(request)
    declared = header(request.scope, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("The client left while it sent its request.")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def require_json(request: Request) -> None:
    """A form or a plain text is refused: what a web page may send across sites without asking, we do not read."""
    kind = header(request.scope, b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"The content type must be application/json, got {kind or 'none'!r}.")
    if (coding := header(request.scope, b"content-encoding").strip().lower()) not in ("", "identity"):
        raise InvalidRequest(f"The content encoding must be identity, got {coding!r}: send the body as it is.")


def parse_json(body: bytes) -> dict[str, object]:
    """The JSON object in `body`. Raises InvalidRequest with line and column, or the depth that is too much."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"The body must be a JSON object, got {json_type(data)}.")
    # Depth cannot exceed the number of brackets: most bodies need no walk.
    if (brackets := body.count(b"{") + body.count(b"[")) > MAX_DEPTH and too_deep(data, brackets):
        raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")
    return data


def too_deep(data: object, most: int = sys.maxsize) -> bool:
    """Whether lists and objects nest more than MAX_DEPTH levels. `most`: how many of them there may be; once as many
    were seen, nobody looks for others among what may be half a million numbers.
    """
    level = [data]
    for _ in range(MAX_DEPTH):
        most -= len(level)
        if most <= 0:
            return False
        level = [inner for item in level for inner in _inside(item) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def validate(model: type[Model], data: dict[str, object]) -> Model:
    """`data` as a `model`. Raises InvalidRequest: every finding in one line, `param` the first field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise InvalidRequest(flatten(found), param=_path(found[0]) or None) from None


def flatten(errors: Sequence[ErrorDetails]) -> str:
    """Pydantic's findings in one line, each with the path of its field: `messages.0.role: ...; n: ...`."""
    lines = [_finding(error) for error in errors[:MAX_FINDINGS]]
    if len(errors) > MAX_FINDINGS:
        lines.append(f"and {len(errors) - MAX_FINDINGS} more")
    return "; ".join(lines)


def _finding(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            message = "this server does not know the field"
        case "missing":
            message = "the field is required"
        case "too_short":
            message = f"must have at least {error['ctx']['min_length']} item"
        case "value_error":
            message = str(error["ctx"]["error"])
        case _:
            message = error["msg"].removeprefix("Input ")
    path = _path(error)
    return f"{path}: {message}" if path else message


def _path(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.")
