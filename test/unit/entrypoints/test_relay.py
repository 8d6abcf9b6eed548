"""A relayed request reaches the owner's application as it came, and its answer comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from fixtures.wired import Wired
from mysglang.srt.entrypoints.auth import route_path
from mysglang.srt.entrypoints.http_protocol import Connections, OneAtATime
from mysglang.srt.entrypoints.relay import Owner, RelayedPaths, serve_connections


async def tell(scope: Scope, receive: Receive, send: Send) -> None:
    """A request as the owner sees it."""
    request = Request(scope, receive)
    seen = {"path": route_path(scope), "query": str(request.url.query), "body": (await request.body()).decode()}
    await JSONResponse(seen)(scope, receive, send)


async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse("not relayed")(scope, receive, send)


@pytest.fixture
async def owner() -> AsyncIterator[tuple[Owner, list[str]]]:
    """An owner whose application reports its requests, below the root path in the list."""
    root = [""]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    state = ServerState()
    state.default_headers = [(b"date", b"today")]

    def connection() -> OneAtATime:
        config = uvicorn.Config(tell, loop="none", lifespan="off", log_config=None, access_log=False, root_path=root[0])
        return OneAtATime(config, state, {}, common=Connections(30.0))

    with theirs:
        close = serve_connections(ours, connection)
        yield Owner(theirs), root
        close()
        assert ours.fileno() == -1


async def ask(owner: Owner, path: str, body: object, root: str) -> Any:
    front = Wired(RelayedPaths(elsewhere, owner=owner, paths=("/kept",)), root_path=root)
    front.post(path, body)
    await front.until(lambda: front.protocol.cycle.response_complete)
    await asyncio.sleep(0)
    head, _, body = front.transport.written.partition(b"\r\n\r\n")
    names = [line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    # The front's own server says the date, which is none here.
    assert sorted(names) == [b"content-length", b"content-type"]
    return orjson.loads(body)


@pytest.mark.parametrize("root", ["", "/proxy"])
async def test_the_owner_sees_the_request_as_it_came(owner: tuple[Owner, list[str]], root: str) -> None:
    relay, roots = owner
    roots[0] = root
    for path, query in [("/kept", ""), ("/kept/a%20b", "limit=2&after=x")]:
        seen = await ask(relay, f"{path}?{query}" if query else path, {"a": 1}, root)
        assert seen == {"path": path.replace("%20", " "), "query": query, "body": '{"a":1}'}


async def test_other_paths_stay_here(owner: tuple[Owner, list[str]]) -> None:
    assert await ask(owner[0], "/keptnot", {}, "") == "not relayed"
