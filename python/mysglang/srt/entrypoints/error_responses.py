"""Maps each exception to its HTTP status and body: the only such table, and the forms of an error.

On OpenAI's paths the facts are under "error" alone: OpenAI's Python client prints the whole body, and would print
each fact twice. On native paths they are there, and flat beside it, as SGLang's clients read them. Both have the id
of the request, which is the `x-request-id` header too. In a stream, whose status was sent before, the nested part is a
frame. The entrance names the shape of a path (`entrance.py`). Knows no route and no front.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol

import msgspec
import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from mysglang.srt.entrypoints.body import BodyTooLarge, flatten
from mysglang.srt.entrypoints.body_room import BodyRoomFull
from mysglang.srt.entrypoints.departure import ClientDisconnected
from mysglang.srt.entrypoints.request_id import HEADER, request_id_of
from mysglang.srt.errors import Aborted, Conflict, NoRoom, NotFound, Overloaded, RequestError, ShuttingDown, WorkerDied
from mysglang.srt.utils.shortage import shortage_in

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""Seconds of the Retry-After header, for a client that is refused temporarily."""

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has left. No client reads the answer; the access log records it."""

SHUTTING_DOWN = "shutting_down"

# (exception, status, code), the first that fits counts; a code is a word where the status would say too little.
# Aborted and HTTPException bring their own status; anything else is a 500.
_TABLE: tuple[tuple[type[Exception], int, str | None], ...] = (
    (BodyTooLarge, 413, None),
    (NotFound, 404, None),
    (Conflict, 409, None),
    (Overloaded, 429, None),
    (NoRoom, 507, None),
    (BodyRoomFull, 503, "too_many_bodies"),
    (RequestError, 400, None),
    (RequestValidationError, 400, None),
    (WorkerDied, 503, "engine_dead"),
    (ShuttingDown, 503, SHUTTING_DOWN),
    (ClientDisconnected, CLIENT_CLOSED_REQUEST, None),
)

PERHAPS_SHORTAGE = (OSError, MemoryError, RuntimeError, ImportError)
"""Exceptions by which a lack of files, threads or memory is reported, among other causes."""

KINDS: tuple[type[Exception], ...] = (*(kind for kind, _, _ in _TABLE), Aborted, HTTPException)
"""Exceptions that are raised on purpose."""

# Names of OpenAI's clients for their exceptions.
_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    507: "InsufficientStorageError",
}

# Names for statuses whose usual name belongs to another kind.
_TYPES_BY_CODE = {SHUTTING_DOWN: "ShuttingDownError"}

_RETRYABLE = frozenset({429, 503})

STATUSES: Mapping[int, str] = {
    400: "what was asked is not valid, or not served; `param` names the field.",
    401: "a key is missing or unknown.",
    403: "the key may not do that, or the request came under a name that is not this machine's.",
    404: "the requested object does not exist.",
    408: "the request took too long to arrive.",
    409: "something that is under way, or was done, is against it.",
    413: "the body is too large.",
    429: "too many requests wait; try again later.",
    414: "the URL is too long.",
    431: "the head of the request is too large.",
    CLIENT_CLOSED_REQUEST: "the request was aborted before its answer was complete.",
    500: "an error of the server.",
    503: "the engine does not answer, the server is shutting down, or it is short of files, threads or memory.",
    507: "the server's disk has no room for what was sent.",
}
"""Every status of an error, and what it says."""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """Facts about one error for the client."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    """A word where the status alone would say too little."""
    kind: str | None = None
    """The name of this kind of error; None for that of the status."""

    @property
    def type(self) -> str:
        by_status = _TYPES.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError")
        return self.kind or _TYPES_BY_CODE.get(self.code or "", by_status)

    def fields(self, request_id: str) -> dict[str, object]:
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.status if self.code is None else self.code,
            "retryable": self.status in _RETRYABLE,
            "request_id": request_id,
        }


class ErrorFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of an error answer that are the same in all dialects (`ErrorFacts.fields`)."""

    message: str
    type: str
    param: str | None
    code: int | str
    retryable: bool
    request_id: str


class OpenAIError(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of an error response in OpenAI's form; in a stream, the last frame."""

    error: ErrorFields


class NativeError(ErrorFields, kw_only=True, tag_field="object", tag="error"):
    """Body of an error response on the native routes: the fields, and again the same fields under `error`."""

    error: ErrorFields


class ErrorShape(Protocol):
    """How an API dialect writes an error as JSON."""

    @property
    def schema(self) -> type[msgspec.Struct]:
        """The struct that describes `body` in the API docs."""
        ...

    def body(self, facts: ErrorFacts, request_id: str) -> Mapping[str, object]:
        """Returns the JSON body of an error response."""
        ...

    def frame(self, facts: ErrorFacts, request_id: str) -> bytes:
        """Returns the last frame of a stream that failed: no finish and no `[DONE]` follow it."""
        ...


class OpenAIShape:
    """Writes errors in OpenAI's form, under `error`. Also used for errors that are found before the path is known."""

    schema: type[msgspec.Struct] = OpenAIError

    def body(self, facts: ErrorFacts, request_id: str) -> Mapping[str, object]:
        return {"error": facts.fields(request_id)}

    def frame(self, facts: ErrorFacts, request_id: str) -> bytes:
        return b'data: {"error":' + orjson.dumps(facts.fields(request_id)) + b"}\n\n"


class NativeShape(OpenAIShape):
    """Writes errors on every path without a form of its own: the fields, and again under `error`. Frames are
    OpenAI's.
    """

    schema = NativeError

    def body(self, facts: ErrorFacts, request_id: str) -> Mapping[str, object]:
        fields = facts.fields(request_id)
        return {"object": "error", **fields, "error": fields}


_SHAPE = "mysglang.error_shape"
OPENAI_SHAPE = OpenAIShape()
NATIVE_SHAPE = NativeShape()


def shape_of(path: str, shapes: Mapping[str, ErrorShape]) -> ErrorShape:
    """Returns the shape of errors under `path`: that of the first prefix in `shapes` that fits, cut at a slash. Where
    none fits, it is the native one.
    """
    for prefix, shape in shapes.items():
        if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
            return shape
    return NATIVE_SHAPE


def speak(scope: Scope, shape: ErrorShape) -> None:
    """Makes errors of the request of `scope` appear in this shape."""
    scope[_SHAPE] = shape


def _shape_of(scope: Scope) -> ErrorShape:
    shape: ErrorShape = scope.get(_SHAPE, OPENAI_SHAPE)
    return shape


def describe(error: Exception) -> ErrorFacts:
    """Returns facts about `error` for the client. An error that was not raised on purpose is reported without its
    details.
    """
    match error:
        case Aborted(status=status):
            return ErrorFacts(status or 500, error.message, error.param, kind=error.kind)
        case HTTPException(status_code=status):
            return ErrorFacts(status, str(error.detail))
    for kind, status, code in _TABLE:
        if isinstance(error, kind):
            return ErrorFacts(status, _words(error), _param(error), code)
    if shortage := shortage_in(error):
        return ErrorFacts(503, f"The server is short of resources for the moment ({shortage}); try again.")
    return ErrorFacts(500, "Internal server error; the server's log says more.")


def _param(error: Exception) -> str | None:
    """Returns the name of the field that caused the error, or None."""
    if isinstance(error, RequestValidationError):
        return str(error.errors()[0]["loc"][-1])
    param: str | None = getattr(error, "param", None)
    return param


def _words(error: Exception) -> str:
    match error:
        case RequestValidationError():
            return flatten(error.errors())
        case WorkerDied():
            return f"The engine has died: {error}"
        case ShuttingDown():
            return f"The server is shutting down: {error}"
    return str(error)


def error_response(facts: ErrorFacts, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the whole answer to a request of which nothing was answered yet."""
    request_id = request_id_of(scope)
    all_headers = {HEADER: request_id, **(headers or {})}
    if facts.status in _RETRYABLE:
        all_headers.setdefault("retry-after", str(RETRY_AFTER_S))
    if facts.status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.INSUFFICIENT_STORAGE):
        all_headers["connection"] = "close"  # the rest of the body is not going to be read
    body = _shape_of(scope).body(facts, request_id)
    return Response(orjson.dumps(body), facts.status, all_headers, media_type="application/json")


def error_frame(facts: ErrorFacts, scope: Scope) -> bytes:
    """Returns the last frame of a stream that failed, in the dialect of its path."""
    return _shape_of(scope).frame(facts, request_id_of(scope))


def install(app: FastAPI) -> None:
    """Install the table for all exceptions that routes of `app` raise."""

    for kind in (*KINDS, Exception):
        app.add_exception_handler(kind, respond)
    for kind in PERHAPS_SHORTAGE:
        app.add_exception_handler(kind, respond_to_shortage)


async def respond(request: Request, error: Exception) -> Response:
    """Returns the answer to `request`, whose route raised `error`."""
    facts = describe(error)
    if not isinstance(error, HTTPException):
        return error_response(facts, request.scope)
    # The router knows only "Not Found" and "Method Not Allowed".
    facts = replace(facts, message=f"{facts.message}: {request.method} {request.url.path}")
    not_allowed = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    headers = {"allow": _allowed(request.scope)} if not_allowed else error.headers
    return error_response(facts, request.scope, headers)


def _allowed(scope: Scope) -> str:
    """Returns the methods of all routes that have the path. The router knows only those of the first one."""
    found = set[str]()
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(found))


async def respond_to_shortage(request: Request, error: Exception) -> Response:
    """Returns the answer to `request`, for which the system had no resources left. Raises `error` if it is about
    something else.
    """
    shortage = shortage_in(error)
    if shortage is None:
        raise error
    logger.warning(
        "%s %s was answered with status 503, because the system ran short of a resource: %s",
        request.method,
        request.url.path,
        shortage,
    )
    return await respond(request, error)
