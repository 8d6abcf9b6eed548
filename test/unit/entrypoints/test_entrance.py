"""The entrance answers pages of other origins as Starlette's CORSMiddleware does, byte for byte; the first check that
refuses a request answers it; and no other spelling of its own headers is left beside those that it sets.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import LOCAL_ORIGIN
from mysglang.srt.entrypoints.context_notes import ContextNote
from mysglang.srt.entrypoints.entrance import Check, Entrance
from mysglang.srt.entrypoints.error_responses import ErrorFacts
from mysglang.srt.entrypoints.http_app import INVITED
from mysglang.srt.entrypoints.ignored_fields import FieldLog, fields_of
from mysglang.srt.managers.caller import CALLER, Caller

Headers = list[tuple[bytes, bytes]]

PREFLIGHT = [(b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"x-api-key")]
ORIGINS = [None, b"http://localhost:5173", b"https://friend.example", b"https://stranger.example", b""]
ANSWERS: list[Headers] = [
    [],
    [(b"content-type", b"text/plain"), (b"x-a", b"1")],
    [(b"vary", b"Accept"), (b"x-a", b"1")],
    [(b"x-a", b"1"), (b"vary", b"Accept"), (b"x-b", b"2"), (b"vary", b"Accept-Encoding")],
]
IDS = [(b"x-request-id", b"7"), (b"request-id", b"7")]


def told(app: ASGIApp, method: str, headers: Headers, kind: str = "http") -> list[Message]:
    """The messages that `app` sends for such a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing of a body is read")

    scope: Scope = {"type": kind, "method": method, "path": "/", "headers": headers}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return [{key: [*value] if key == "headers" else value for key, value in each.items()} for each in sent]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_other_origins_get_starlettes_answers(origin: bytes | None, answer: Headers) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*answer]})
        await send({"type": "http.response.body", "body": b"x"})

    given: list[dict[str, Any]] = [
        {"allow_origins": ["https://friend.example"], "allow_origin_regex": LOCAL_ORIGIN},
        {"allow_origins": ["*"]},
    ]
    origins = [] if origin is None else [(b"origin", origin)]
    for options in given:
        ours = Entrance(app, log=FieldLog(), shapes={}, invited={**options, **INVITED})
        theirs = CORSMiddleware(app, **options, **INVITED)
        for method, more in (("POST", []), ("OPTIONS", []), ("OPTIONS", PREFLIGHT)):
            headers = [(b"x-request-id", b"7"), *origins, *more]
            expected = told(theirs, method, headers)
            expected[0]["headers"] += IDS
            assert told(ours, method, headers) == expected


def test_without_invitations_an_answer_gets_the_ids_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fields_of(scope).unknown("odd")
        own = [(b"request-id", b"of the route"), (b"x-ignored-fields", b"of the route"), (b"x-a", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": own})

    [answer] = told(Entrance(app, log=FieldLog(), shapes={}), "GET", [(b"x-request-id", b"7")])
    assert answer["headers"] == [(b"x-a", b"1"), (b"x-ignored-fields", b"odd"), *IDS]


class Gatekeeper:
    def __init__(self, refusal: ErrorFacts | None, asked: list[int]) -> None:
        self._refusal = refusal
        self._asked = asked

    def refusal(self, scope: Scope) -> ErrorFacts | None:
        self._asked.append(0 if self._refusal is None else self._refusal.status)
        return self._refusal


def checked(asked: list[int], *statuses: int) -> Sequence[Check]:
    return [Gatekeeper(ErrorFacts(status, "No.") if status else None, asked) for status in statuses]


class Named(ContextNote[Caller]):
    variable = CALLER

    def note(self, scope: Scope) -> Caller:
        return Caller(api_key="named")


def test_the_first_refusal_is_the_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("no check lets it in")

    asked: list[int] = []
    entrance = Entrance(app, log=FieldLog(), shapes={}, checks=checked(asked, 0, 401, 403), notes=[Named()])
    [head, _] = told(entrance, "GET", [])
    assert (head["status"], asked) == (401, [0, 401])
    assert (b"www-authenticate", b"Bearer") in head["headers"]
    assert told(entrance, "GET", [], kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    [head, _] = told(Entrance(app, log=FieldLog(), shapes={}, checks=checked(asked, 403)), "GET", [])
    assert head["status"] == 403
    assert b"www-authenticate" not in dict(head["headers"])


def test_notes_hold_while_the_request_is_answered() -> None:
    seen: list[Caller] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(CALLER.get())
        raise LookupError

    async def ask() -> None:
        sent = await failing(Entrance(app, log=FieldLog(), shapes={}, notes=[Named()]), LookupError)
        assert [message.get("status") for message in sent] == [500, None]
        seen.append(CALLER.get())

    asyncio.run(ask())
    assert [one.api_key for one in seen] == ["named", ""]


async def failing(app: ASGIApp, error: type[Exception]) -> list[Message]:
    """The messages that `app` sends for a request before it raises `error`."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing of a body is read")

    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"7")]}
    with pytest.raises(error):
        await app(scope, receive, send)
    return sent


def test_an_unexpected_error_is_answered_once_and_raised() -> None:
    async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("a secret")

    async def later(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("a secret")

    head, body = asyncio.run(failing(Entrance(at_once, log=FieldLog(), shapes={}), ZeroDivisionError))
    assert head["status"] == 500 and dict(head["headers"])[b"x-request-id"] == b"7"
    assert json.loads(body["body"])["error"]["type"] == "InternalServerError"
    assert b"secret" not in body["body"]
    [head] = asyncio.run(failing(Entrance(later, log=FieldLog(), shapes={}), ZeroDivisionError))
    assert head["status"] == 200
