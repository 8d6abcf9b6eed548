"""Exception -> HTTP status and body: the one table, and the one shape that an error has.

The body is flat, as SGLang's clients read it, and carries the same facts once more under "error", where OpenAI's and
the native route's clients look; with the id of the request, which is the `x-request-id` header too. In a stream, whose
status is long sent, the nested part alone is a frame. Knows no route and no front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from mysglang.srt.entrypoints.body import BodyTooLarge, ClientDisconnected, flatten
from mysglang.srt.entrypoints.request_id import HEADER, request_id_of
from mysglang.srt.errors import Aborted, NotFound, Overloaded, RequestError, WorkerDied

RETRY_AFTER_S = 1
"""What a client refused for the moment is told to wait, in seconds."""

CLIENT_CLOSED_REQUEST = 499
"""nginx's number for a client that left. Nobody reads that answer; the access log does."""

# The first row that fits counts; any other RequestError is a 400.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (BodyTooLarge, 413),
    (NotFound, 404),
    (Overloaded, 429),
    (WorkerDied, 503),
    (ClientDisconnected, CLIENT_CLOSED_REQUEST),
    (RequestError, 400),
    (RequestValidationError, 400),
)

# As OpenAI's clients name their exceptions.
_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}

_RETRYABLE = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What a client is told of one error."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: int | str | None = None
    """A word where the status would say too little; else None, and the status stands for it."""

    def fields(self, request_id: str) -> dict[str, object]:
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.status if self.code is None else self.code,
            "retryable": self.status in _RETRYABLE,
            "request_id": request_id,
        }


def describe(error: Exception) -> ErrorFacts:
    """What a client is told of `error`. Of what we did not raise on purpose it learns nothing."""
    match error:
        case Aborted():
            status = error.status or 500
            return ErrorFacts(status, error.message, error.kind or type_of(status), error.param)
        case HTTPException():
            return ErrorFacts(error.status_code, str(error.detail), type_of(error.status_code))
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    match error:
        case WorkerDied():
            return ErrorFacts(status, f"The engine has died: {error}", type_of(status), code="engine_dead")
        case RequestError():
            return ErrorFacts(status, error.message, type_of(status), error.param)
        case RequestValidationError():
            return ErrorFacts(status, flatten(error.errors()), type_of(status))
        case ClientDisconnected():
            return ErrorFacts(status, str(error), type_of(status))
    return ErrorFacts(status, "Internal server error; the server's log says more.", type_of(status))


def type_of(status: int) -> str:
    """The name of a kind of error."""
    return _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")


def error_response(facts: ErrorFacts, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """The whole answer to a request of which nothing was answered yet."""
    fields = facts.fields(request_id_of(scope))
    all_headers = {HEADER: request_id_of(scope), **(headers or {})}
    if facts.status in _RETRYABLE:
        all_headers.setdefault("retry-after", str(RETRY_AFTER_S))
    if facts.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        all_headers["connection"] = "close"  # the rest of the body is not going to be read
    body = {"object": "error", **fields, "error": fields}
    return Response(orjson.dumps(body), facts.status, all_headers, media_type="application/json")


def error_frame(facts: ErrorFacts, scope: Scope) -> bytes:
    """The last frame of a stream that failed: no finish and no `[DONE]` follow it."""
    return b'data: {"error":' + orjson.dumps(facts.fields(request_id_of(scope))) + b"}\n\n"


def install(app: FastAPI) -> None:
    """Answer whatever a route of `app` raises by the table."""

    async def respond(request: Request, error: Exception) -> Response:
        facts = describe(error)
        if not isinstance(error, HTTPException):
            return error_response(facts, request.scope)
        # The router knows only "Not Found" and "Method Not Allowed".
        facts = replace(facts, message=f"{facts.message}: {request.method} {request.url.path}")
        return error_response(facts, request.scope, error.headers)

    kinds = [kind for kind, _ in _STATUS] + [Aborted, HTTPException, Exception]
    for kind in kinds:
        app.add_exception_handler(kind, respond)
