"""Entrance: the one middleware around all routes. It applies every rule about heads to a request in one pass.

    request   its id, who hears of its fields, the form of its errors   one note in the scope each
              checks: may it come in?                                   the first refusal is the answer
              context notes                                             for all code that works on the request
    answer    `Vary`, ignored fields, the request's id                  one list of headers
    error     one that no route expected                                the answer, and then the log

A middleware for each rule would be a coroutine around a coroutine, and a call for each message of each answer. A rule
here is a plain function of the scope, so a rule more costs one call more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.context_notes import ContextNote
from mysglang.srt.entrypoints.error_responses import (
    ErrorFacts,
    ErrorShape,
    error_response,
    respond,
    shape_of,
    speak,
)
from mysglang.srt.entrypoints.headers import Headers
from mysglang.srt.entrypoints.ignored_fields import FieldLog, log_to, with_ignored_fields
from mysglang.srt.entrypoints.invitations import by_origin, has_origin
from mysglang.srt.entrypoints.request_id import request_id_of, with_request_id


class Check(Protocol):
    """Decides about a request by its head."""

    def refusal(self, scope: Scope) -> ErrorFacts | None:
        """Returns the reason why the request may not come in; None if it may."""
        ...


class Entrance:
    """Middleware that lets requests in, and completes the heads of their answers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        log: FieldLog,
        shapes: Mapping[str, ErrorShape],
        checks: Sequence[Check] = (),
        notes: Sequence[ContextNote[Any]] = (),
        invited: Mapping[str, Any] | None = None,
    ) -> None:
        """`log`: receives the fields of requests that have no effect. `shapes`: prefix of a path -> form of its errors.
        `checks`: in the order in which they decide. `notes`: made for requests that all checks let in. `invited`:
        options of Starlette's CORSMiddleware; None if no pages of other origins may use the server.
        """
        self._app = app
        self._log = log
        self._shapes = shapes
        self._checks = tuple(checks)
        self._notes = tuple(notes)
        self._pages = None if invited is None else CORSMiddleware(self._admit, **invited)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        log_to(scope, self._log)
        request_id = request_id_of(scope)
        pages = self._pages
        from_page = pages is not None and has_origin(scope)
        varies = pages is not None and not from_page
        begun = False

        async def send_complete(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers: Headers = message.get("headers", ())
                if varies:
                    headers = by_origin(headers)
                headers = with_request_id(with_ignored_fields(headers, scope), request_id)
                message = {**message, "headers": headers}
            await send(message)

        try:
            if pages is not None and from_page:
                await pages(scope, receive, send_complete)
            else:
                await self._admit(scope, receive, send_complete)
        except Exception as error:
            if not begun:
                response = await respond(Request(scope), error)
                response.headers["connection"] = "close"  # a client must not send its next request into a reset
                await response(scope, receive, send)
            raise  # for the log of the server, which closes the connection

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the routes, or answers with the refusal of a check."""
        speak(scope, shape_of(route_path(scope), self._shapes))
        for check in self._checks:
            if (refused := check.refusal(scope)) is not None:
                headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
                await error_response(refused, scope, headers)(scope, receive, send)
                return
        tokens = [note.variable.set(note.note(scope)) for note in self._notes]
        try:
            await self._app(scope, receive, send)
        finally:
            for token in tokens:
                token.var.reset(token)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles the lifespan, and a WebSocket, for which the same checks decide. No route has one."""
        if scope["type"] == "websocket" and any(check.refusal(scope) is not None for check in self._checks):
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)
