"""Invitations answer as Starlette's CORSMiddleware does, byte for byte."""

import asyncio
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mysglang.srt.entrypoints.auth import LOCAL_ORIGIN
from mysglang.srt.entrypoints.http_app import INVITED
from mysglang.srt.entrypoints.invitations import Invitations

Headers = list[tuple[bytes, bytes]]

PREFLIGHT = [(b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"x-api-key")]
ORIGINS = [None, b"http://localhost:5173", b"https://friend.example", b"https://stranger.example", b""]
ANSWERS: list[Headers] = [
    [],
    [(b"content-type", b"text/plain"), (b"x-a", b"1")],
    [(b"vary", b"Accept"), (b"x-a", b"1")],
    [(b"x-a", b"1"), (b"vary", b"Accept"), (b"x-b", b"2"), (b"vary", b"Accept-Encoding")],
]


def told(app: ASGIApp, method: str, headers: Headers) -> list[Message]:
    """The messages that `app` sends for such a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing of a body is read")

    scope: Scope = {"type": "http", "method": method, "path": "/", "headers": headers}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return [{key: [*value] if key == "headers" else value for key, value in each.items()} for each in sent]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_answers_are_starlettes(origin: bytes | None, answer: Headers) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*answer]})
        await send({"type": "http.response.body", "body": b"x"})

    given: list[dict[str, Any]] = [
        {"allow_origins": ["https://friend.example"], "allow_origin_regex": LOCAL_ORIGIN},
        {"allow_origins": ["*"]},
    ]
    origins = [] if origin is None else [(b"origin", origin)]
    for options in given:
        ours, theirs = Invitations(app, **options, **INVITED), CORSMiddleware(app, **options, **INVITED)
        for method, more in (("POST", []), ("OPTIONS", []), ("OPTIONS", PREFLIGHT)):
            assert told(ours, method, [*origins, *more]) == told(theirs, method, [*origins, *more])
