"""Which routes are gone to at once, and that it makes no difference to a client."""

from __future__ import annotations

import errno
import os
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.testclient import TestClient

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.error_responses import install
from mysglang.srt.entrypoints.straight_routes import StraightRoutes, straight


def test_only_what_wants_the_request_alone() -> None:
    router = APIRouter()

    @router.post("/plain")
    async def plain(request: Request) -> Response:
        return Response()

    @router.post("/plain")
    async def shadowed(request: Request) -> Response:
        return Response()

    @router.post("/guarded")
    async def guarded(request: Request, why: str = "") -> Response:
        return Response(status_code=400)

    @router.post("/guarded")
    async def behind(request: Request) -> Response:
        return Response()

    @router.get("/query")
    async def query(request: Request, limit: int = 3) -> Response:
        return Response()

    @router.get("/of/{name}")
    async def of(request: Request) -> Response:
        return Response()

    app = FastAPI()
    app.include_router(router)
    found = straight(app.routes)
    assert {key: route.endpoint for key, route in found.items() if key[0] == "POST"} == {("POST", "/plain"): plain}
    assert not {"/query", "/of/{name}"} & {path for _, path in found}


CASES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/completions", {"prompt": "a"}),
    ("POST", "/v1/completions", {"prompt": "a", "stream": True}),
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": -1}),
    ("POST", "/v1/completions", {"prompt": "a", "model": "another"}),
    ("POST", "/v1/completions", {"prompt": 7}),
    ("GET", "/v1/completions", None),
    ("PUT", "/generate", {"text": "a"}),
    ("POST", "/v1/messages", {"max_tokens": 3}),
    ("POST", "/api/chat", {}),
    ("GET", "/server_info", None),
    ("GET", "/health", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CASES)
async def test_the_answer_is_that_of_the_router(method: str, path: str, body: Any, monkeypatch: Any) -> None:
    async with serve() as served:
        straightly = await served.client.request(method, path, json=body, headers={"x-request-id": "one"})
    monkeypatch.setattr("mysglang.srt.entrypoints.straight_routes.straight", lambda _routes: {})
    async with serve() as served:
        by_router = await served.client.request(method, path, json=body, headers={"x-request-id": "one"})
    assert _facts(straightly) == _facts(by_router)


def _facts(response: httpx.Response) -> object:
    """Without what differs from call to call."""
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return response.status_code, headers, len(response.content.split(b"data: ")), response.reason_phrase


@pytest.mark.promise(46)
@pytest.mark.parametrize("path", ["/straight", "/by/name"])
def test_promise_46_a_shortage_is_answered_503_on_a_connection_that_stays(path: str) -> None:
    """A route by a router, and one that is gone to at once. What is no shortage stays an error of ours."""
    app = FastAPI()
    install(app)
    errors: list[Exception] = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), RuntimeError("can't start new thread")]

    @app.get("/straight")
    async def straight_route(request: Request) -> Response:
        raise errors[0]

    @app.get("/by/{name}")
    async def by_name(name: str) -> Response:
        raise errors[0]

    app.add_middleware(StraightRoutes, routes=lambda: app.routes)
    # Errors that uvicorn would hear of, and close the connection for, are raised here.
    with TestClient(app, raise_server_exceptions=True) as client:
        while errors:
            answer = client.get(path)
            assert answer.status_code == 503 and answer.headers["retry-after"]
            assert "short of resources" in answer.json()["error"]["message"]
            errors.pop(0)
        errors.append(RuntimeError("a mistake of ours"))
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            client.get(path)
