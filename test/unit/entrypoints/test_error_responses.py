"""Every exception has its status and its words; every body has the same shape and the request's id."""

import re

import orjson
import pytest

from fixtures.fake_engine import FakeEngine
from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.body import BodyTooLarge
from mysglang.srt.entrypoints.departure import ClientDisconnected
from mysglang.srt.entrypoints.error_responses import describe, error_frame, error_response
from mysglang.srt.errors import (
    Aborted,
    Conflict,
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestError,
    ShuttingDown,
    WorkerDied,
)

SCOPE = {"type": "http", "headers": [(b"x-request-id", b"abc")]}


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("m", param="p"), 400, "BadRequestError", 400),
        (ContextTooLong("m", param="p"), 400, "BadRequestError", 400),
        (RequestError("m", param="p"), 400, "BadRequestError", 400),
        (NotFound("m", param="p"), 404, "NotFoundError", 404),
        (Conflict("m", param="p"), 409, "ConflictError", 409),
        (BodyTooLarge("m", param="p"), 413, "BadRequestError", 413),
        (Overloaded("m", param="p"), 429, "RateLimitError", 429),
        (Aborted("m"), 500, "InternalServerError", 500),
        (Aborted("m", status=503), 503, "ServiceUnavailableError", 503),
        (Aborted("m", status=400, kind="Special"), 400, "Special", 400),
        (Aborted("m", status=500, param="p"), 500, "InternalServerError", 500),
    ],
)
def test_requests_errors(error: RequestError, status: int, kind: str, code: int) -> None:
    facts = describe(error)
    assert (facts.status, facts.type, facts.message, facts.param) == (status, kind, "m", error.param)
    assert facts.fields("id")["code"] == code


@pytest.mark.promise(30)
def test_the_death_of_the_engine_has_a_word_of_its_own() -> None:
    facts = describe(WorkerDied("scheduler_TP0 was killed by signal 9"))
    assert facts.status == 503
    assert facts.fields("id")["code"] == "engine_dead"
    assert "scheduler_TP0 was killed by signal 9" in facts.message


@pytest.mark.promise(11)
def test_promise_11_a_shutdown_is_told_apart_from_a_death() -> None:
    facts = describe(ShuttingDown("time is up"))
    assert (facts.status, facts.type, facts.code) == (503, "ShuttingDownError", "shutting_down")
    assert "time is up" in facts.message and "died" not in facts.message
    assert error_response(facts, SCOPE).headers["retry-after"]


def test_what_we_did_not_raise_on_purpose_is_told_without_detail() -> None:
    facts = describe(KeyError("secret"))
    assert facts.status == 500
    assert "secret" not in facts.message


def test_who_left() -> None:
    assert describe(ClientDisconnected("gone")).status == 499


@pytest.mark.promise(30)
def test_the_body_has_every_fact() -> None:
    response = error_response(describe(Overloaded("full")), SCOPE)
    body = orjson.loads(response.body)
    assert body.keys() == {"error"}
    assert body["error"] == {
        "message": "full",
        "type": "RateLimitError",
        "param": None,
        "code": 429,
        "retryable": True,
        "request_id": "abc",
    }
    assert response.headers["retry-after"] == "1"
    assert response.headers["x-request-id"] == "abc"


def test_a_body_that_is_not_read_ends_the_connection() -> None:
    assert error_response(describe(BodyTooLarge("big")), SCOPE).headers["connection"] == "close"


def test_the_frame_is_one_event() -> None:
    frame = error_frame(describe(InvalidRequest('two\nlines "quoted"')), SCOPE)
    assert frame.startswith(b'data: {"error":{')
    assert frame.endswith(b"}}\n\n")
    assert frame.count(b"\n") == 2
    assert orjson.loads(frame[6:])["error"]["message"] == 'two\nlines "quoted"'


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "Not Found: GET /nowhere"),
        ("POST", "/health/", 404, "Not Found: POST /health/"),
        ("GET", "/generate", 405, "Method Not Allowed: GET /generate"),
        ("POST", "/flush_cache?timeout=soon", 400, "query.timeout: should be a valid number"),
        ("POST", "/flush_cache?timeout=-1", 400, "query.timeout: should be greater than or equal to 0"),
    ],
)
async def test_errors_of_the_router(method: str, path: str, status: int, message: str) -> None:
    async with serve() as served:
        response = await served.client.request(method, path)
        body = response.json()
    assert response.status_code == status
    assert body["message"].startswith(message)
    assert {"message", "type", "param", "code", "request_id"} <= body["error"].keys()


async def test_anthropics_clients_are_told_in_their_form_of_an_unknown_model() -> None:
    async with serve() as served:
        response = await served.client.get("/v1/models/nothing", headers={"anthropic-version": "2023-06-01"})
    body = response.json()
    assert response.status_code == 404
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")


async def test_a_bug_in_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: object, _message: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(FakeEngine, "send", broken)
    async with serve() as served:
        response = await served.post("/generate", {"text": "Hi"}, headers={"x-request-id": "mine"})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == response.json()["error"]["request_id"] == "mine"
    assert response.headers["connection"] == "close", "the server closes it, so the client must not use it again"


@pytest.mark.promise(30)
async def test_every_response_has_an_id() -> None:
    async with serve() as served:
        for path in ("/health", "/v1/models", "/nowhere"):
            ids = {(await served.client.get(path)).headers["x-request-id"] for _ in range(2)}
            assert len(ids) == 2
            assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


@pytest.mark.parametrize(("given", "kept"), [("req-1.A:b", True), ("x" * 129, False), ("a b", False), ("ä", False)])
async def test_a_clients_own_id_is_kept_if_it_is_harmless(given: str, kept: bool) -> None:
    async with serve() as served:
        response = await served.client.get("/health", headers={b"x-request-id": given.encode()})
    assert (response.headers["x-request-id"] == given) is kept
