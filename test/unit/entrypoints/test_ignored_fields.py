"""Fields that change nothing: answered and reported, or refused; what is written of them is short and harmless."""

import logging
from typing import Any

import pytest

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.ignored_fields import HEADER, MAX_LISTED, MAX_NAME_LENGTH, FieldLog, safe
from mysglang.srt.utils.said_once import MAX_REMEMBERED

USER = [{"role": "user", "content": "Hi"}]

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {"model": "tiny", "messages": USER, "max_tokens": 9},
    "/api/chat": {"model": "tiny", "messages": USER},
    "/api/generate": {"model": "tiny", "prompt": "Hi"},
    "/generate": {"text": "Hi"},
    "/vertex_generate": {"instances": [{"text": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
}

STRICT = AppOptions(unknown_fields="error")


@pytest.mark.promise(31)
@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_field_is_reported_once_and_the_request_answered(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with serve() as served:
            responses = [await served.post(path, {**BODIES[path], "frobnicate": 1, "stream": False}) for _ in range(2)]
    for response in responses:
        assert response.status_code == 200, response.text
        assert "frobnicate" in response.headers[HEADER].split(", ")
    lines = [record.getMessage() for record in caplog.records if "frobnicate" in record.getMessage()]
    assert len(lines) == 1
    assert path in lines[0]


@pytest.mark.promise(31)
@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_field_can_be_refused(path: str) -> None:
    async with serve(options=STRICT) as served:
        response = await served.post(path, {**BODIES[path], "frobnicate": 1})
        assert not served.engine.sent
    assert response.status_code == 400
    assert "frobnicate" in response.text


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"messages": [{"role": "user", "content": "Hi", "mood": 1}]}, "mood"),
        ({"messages": USER, "stream": True, "stream_options": {"usage": True}}, "usage"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}]},
            "cache_control",
        ),
    ],
)
async def test_fields_of_inner_objects(body: dict[str, Any], name: str) -> None:
    async with serve() as served:
        answered = await served.post("/v1/chat/completions", body)
    async with serve(options=STRICT) as served:
        refused = await served.post("/v1/chat/completions", body)
    assert (answered.status_code, answered.headers[HEADER]) == (200, name)
    assert refused.status_code == 400
    assert f"{name}: this server does not know the field" in refused.json()["error"]["message"]


async def test_an_error_lists_them_too_and_a_known_body_has_no_header() -> None:
    async with serve() as served:
        failed = await served.post("/v1/chat/completions", {"messages": USER, "frobnicate": 1, "top_p": 7})
        plain = await served.post("/v1/chat/completions", {"messages": USER})
    assert (failed.status_code, failed.headers[HEADER]) == (400, "frobnicate")
    assert HEADER not in plain.headers


async def test_hostile_names_stay_short_and_on_their_line(caplog: pytest.LogCaptureFixture) -> None:
    names = ["a\r\nset-cookie: x", "\x00\x1b[31m", "ü" * 9, "n" * 60_000, ""]
    body = {"messages": USER, **dict.fromkeys(names, 1), **{f"field{number}": 1 for number in range(400)}}
    async with serve() as served:
        response = await served.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    value = response.headers[HEADER]
    assert value.isprintable() and value.isascii()
    assert "set-cookie" not in response.headers
    assert value.endswith(f", and {len(names) + 400 - MAX_LISTED} more")
    assert len(value) < (MAX_LISTED + 1) * (MAX_NAME_LENGTH + 2)
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 300 for record in caplog.records)


def test_the_log_forgets_no_name_and_remembers_few(caplog: pytest.LogCaptureFixture) -> None:
    log = FieldLog()
    for _ in range(2):
        for number in range(10 * MAX_REMEMBERED):
            log.report("/generate").unknown(f"field{number}")
    assert len(caplog.records) == MAX_REMEMBERED + 1
    assert "further ones are not logged" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(("name", "shown"), [("a", "a"), ("a b\n", "a?b?"), ("", "?"), ("x" * 65, "x" * 61 + "...")])
def test_what_is_written_of_a_name(name: str, shown: str) -> None:
    assert safe(name) == shown
