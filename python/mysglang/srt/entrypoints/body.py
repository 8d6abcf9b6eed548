"""Turns the bytes of a request into a checked object: bounded in size and depth, every fault named with its place.

Reading stops at the limit, before anything is parsed. JSON is strict: no NaN, no Infinity, no lone surrogates. A long
body is counted before it is parsed, and parsed and checked in a thread, until its client leaves. Knows no route's
fields.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.types import Message

from mysglang.srt.entrypoints.body_room import BodyHold, BodyRoom, MemoryReturn, caller_of
from mysglang.srt.entrypoints.departure import ClientDisconnected, while_connected
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.json_in_pieces import JsonFault, PieceReader
from mysglang.srt.entrypoints.json_layout import JsonLimits, lay_out
from mysglang.srt.entrypoints.strict_model import UNSUPPORTED, sent_names
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import LONG_TEXT, TextPool, checkpoint
from mysglang.srt.messages.generate import REFUSED, FieldReport
from mysglang.srt.utils import exact_json
from mysglang.srt.utils.exact_json import InexactInteger
from mysglang.srt.utils.json_types import json_type

MAX_BODY_BYTES = 32 << 20
"""Room for a few million token ids, or several long texts: more than any context, and quick to refuse."""

LONG_BODY = 1 << 16
"""Bytes from which a body is long: to parse it would stop the event loop for some ten milliseconds."""

JSON = "application/json"

UNTYPED = ("", "application/x-www-form-urlencoded")
"""Content types of a client that does not care about them."""

MAX_DEPTH = 64
"""Levels of lists and objects. Nothing we accept needs ten; templates and validators recurse over what clients send."""

MAX_FINDINGS = 8
"""Largest number of errors that one answer lists."""

_ABSENT = frozenset({"missing", "extra_forbidden"})
"""Kinds of errors whose place ends with the name of a field."""

LIMITS = JsonLimits(depth=MAX_DEPTH)

_MEMORY = MemoryReturn()
_ROOM = BodyRoom()
_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, TextPool] = WeakKeyDictionary()

BODY_BYTES: ContextVar[int] = ContextVar("body_bytes", default=0)
"""Length of the body of the request that is being answered: about how long it takes to translate what it asks for."""

_HOLD = "mysglang.body_hold"
"""The key of a request's scope under which the body's share of the room is kept until the body was checked."""
_NO_HOLD = nullcontext()
"""Share of a body that is checked as soon as it comes."""

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


class BodyTooLarge(InvalidRequest):
    """The body is longer than the server reads."""


async def read_model(request: Request, model: type[Model]) -> Model:
    """Returns the body of `request` as a checked `model`. Raises InvalidRequest that names the fields and what is
    wrong.
    """
    return await read_as(request, partial(validate, model, fields=fields_of(request.scope)))


async def read_as(request: Request, make: Callable[[dict[str, object]], Result]) -> Result:
    """Reads the JSON object in the body of `request` and returns what `make` makes of it.

    Raises the errors of `make`, InvalidRequest, BodyTooLarge and ClientDisconnected.
    """
    return await make_of(request, await read_body(request), make)


async def make_of(
    request: Request, body: bytes, make: Callable[[dict[str, object]], Result], limits: JsonLimits = LIMITS
) -> Result:
    """Returns the result of `make` for a `body` that was read already. A long body is dropped when its client
    leaves.
    """
    hold: AbstractContextManager[object] = request.scope.pop(_HOLD, _NO_HOLD)
    with hold:
        if len(body) < LONG_BODY:
            return make(parse_json(body))
        try:
            return await while_connected(request, _pool().run(LONG_TEXT, lambda: make(parse_json(body, limits))))
        finally:
            _MEMORY.soon()


def _pool() -> TextPool:
    """Returns the threads for long bodies. Only a few large bodies at a time bound the memory, and leave threads for
    other texts.
    """
    loop = asyncio.get_running_loop()
    if (pool := _POOLS.get(loop)) is None:
        pool = _POOLS[loop] = TextPool()
    return pool


async def read_optional(request: Request, model: type[Model]) -> Model:
    """Read a body that may be left out, since every field has a default."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return model()
    return await read_model(request, model)


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Reads the whole body, which must be of a JSON content type and no longer than `limit` bytes.

    Raises InvalidRequest for another content type, BodyTooLarge as soon as the excess is known, BodyRoomFull,
    ClientDisconnected. A body that is long, or does not come in one piece, is counted until `make_of` is through with
    it.
    """
    require_json(request)
    declared = header(request.scope, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    message = await _next_part(request)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) < min(LONG_BODY, limit):
        BODY_BYTES.set(len(body))
        return body
    hold = _ROOM.hold(caller_of(request.scope))
    try:
        body = await _read_parts(request, message, hold, limit)
    except BaseException:
        hold.release()
        raise
    request.scope[_HOLD] = hold
    return body


async def _read_parts(request: Request, message: Message, hold: BodyHold, limit: int) -> bytes:
    """Reads the whole body, of which `message` is the first part."""
    parts: list[bytes] = []
    size = 0
    while True:
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        hold.take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            break
        message = await _next_part(request)
    BODY_BYTES.set(size)
    return b"".join(parts)


async def _next_part(request: Request) -> Message:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("The client left while it sent its request.")
    return message


def require_json(request: Request) -> None:
    """Refuses content types other than JSON. A body without a type counts as JSON, and so does one that `curl -d` calls
    a form, unless a browser sent it.

    A web page may send a form, a text, or bytes without a type to any server, without asking first. Such a request has
    an Origin, and is refused. A text is refused always: a form of that type is sent without escapes.
    """
    scope = request.scope
    kind = header(scope, b"content-type")
    if kind != JSON:
        kind = kind.partition(";")[0].strip().lower()
        by_browser = bool(header(scope, b"origin") or header(scope, b"sec-fetch-site"))
        if kind != JSON and (by_browser or kind not in UNTYPED):
            raise InvalidRequest(f"The content type must be {JSON}, got {kind or 'none'!r}.")
    if (coding := header(scope, b"content-encoding").strip().lower()) not in ("", "identity"):
        raise InvalidRequest(f"The content encoding must be identity, got {coding!r}: send the body as it is.")


def parse_json(body: bytes, limits: JsonLimits = LIMITS) -> dict[str, object]:
    """Returns the JSON object in `body`. Raises InvalidRequest with line and column, or with the limit that it
    exceeds.
    """
    try:
        data = _parse_short(body) if len(body) < LONG_BODY else _parse_long(body, limits)
    except InexactInteger as error:
        raise InvalidRequest(f"The body cannot be read as it is: {error}.") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"The body must be a JSON object, got {json_type(data)}.")
    return data


def _parse_short(body: bytes) -> object:
    try:
        data = exact_json.loads(body)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):  # the parser's own, which is far beyond ours
            raise _too_nested() from None
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    # Depth cannot exceed the number of brackets: most bodies need no walk.
    if (brackets := body.count(b"{") + body.count(b"[")) > MAX_DEPTH and too_deep(data, brackets):
        raise _too_nested()
    return data


def _parse_long(body: bytes, limits: JsonLimits) -> object:
    view = memoryview(body)
    try:
        return PieceReader(view, lay_out(view, limits, checkpoint), checkpoint).read()
    except JsonFault as fault:
        place = max(0, min(fault.place, len(body)))
        line, column = body.count(b"\n", 0, place) + 1, place - body.rfind(b"\n", 0, place)
        where = f"line {line} column {column} (char {place})"
        raise InvalidRequest(f"The body is not valid JSON: {fault.what}: {where}.") from None


def too_deep(data: object, most: int = sys.maxsize) -> bool:
    """True if lists and objects nest more than MAX_DEPTH levels. `most`: the number of lists and objects in the data,
    if known. The search stops after that many, because it would otherwise scan up to half a million numbers.
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


def validate(model: type[Model], data: dict[str, object], fields: FieldReport = REFUSED) -> Model:
    """Returns `data` as a `model`. Raises InvalidRequest with every finding in one line; `param` is the first field.

    `fields` receives the fields that change nothing.
    """
    try:
        return model.model_validate(data, context=fields)
    except ValidationError as error:
        raise _refusal(error, data, getattr(model, "aliases", {})) from None


def _refusal(error: ValidationError, data: dict[str, object], aliases: Mapping[str, str]) -> InvalidRequest:
    """Returns the error in words. It keeps no reference to the checked data. `aliases`: other names of fields of
    `data`.

    What a validator of ours raised has a traceback, whose frames lead back to the caller of pydantic and to all that it
    holds: the body. That would be a cycle, and a whole body would stay until the garbage collector runs.
    """
    found = error.errors(include_url=False, include_input=False)
    sent = sent_names(aliases, data)
    for each in found:
        if isinstance(raised := each.get("ctx", {}).get("error"), BaseException):
            raised.__traceback__ = None
        each["loc"] = _place(each, data, sent)
    return InvalidRequest(flatten(found), param=_path(found[0]) or None)


def _place(error: ErrorDetails, data: dict[str, object], sent: Mapping[str, str]) -> tuple[int | str, ...]:
    """Returns where in `data` the error is. `sent`: our names of fields -> other names that it holds instead.

    Pydantic's own place also has the name of each member of a union that it tried, such as `literal['none','auto']`,
    which no client sent.
    """
    place: list[int | str] = []
    here: Any = data
    for number, part in enumerate(error["loc"]):
        if number == 0 and isinstance(part, str):
            part = sent.get(part, part)
        if _holds(here, part):
            here = here[part]
        elif number == 0:
            here = None  # a field that the translation of the body has made
        elif here is not None and not (error["type"] in _ABSENT and number == len(error["loc"]) - 1):
            continue
        place.append(part)
    if error["type"] == UNSUPPORTED:
        place.append(error["ctx"]["field"])
    return tuple(place)


def _holds(value: object, part: int | str) -> bool:
    """True if `value` is an object with this key, or a list with this index."""
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def flatten(errors: Sequence[ErrorDetails]) -> str:
    """Returns pydantic's findings in one line, each with the path of its field: `messages.0.role: ...; n: ...`."""
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
        case "too_long":
            got = error["ctx"]["actual_length"]  # None where the counting ended at the limit
            message = f"must have at most {error['ctx']['max_length']} items{'' if got is None else f', got {got}'}"
        case "value_error":
            message = str(error["ctx"]["error"])
        case "dict_type" | "model_type" | "model_attributes_type":
            message = "should be an object"
        case "union_tag_invalid":
            message = f"type should be one of {error['ctx']['expected_tags']}, got {error['ctx']['tag']!r}"
        case "union_tag_not_found":
            message = "should be an object with a type"
        case _:
            message = error["msg"].removeprefix("Input ")
    path = _path(error)
    return f"{path}: {message}" if path else message


def _path(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def _too_nested() -> InvalidRequest:
    return InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.")
