"""The application as a whole: a departed client's request is aborted, the docs know the bodies, and no body brings it
down.
"""

import asyncio
import random
import re
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message

from fixtures.patience import PATIENCE_S, settled, until
from fixtures.scripted_engine import Script, Served, endless, hello, serve, silent

GENERATING: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


class Connection:
    """One request on the wire, by hand: its client can leave at any moment."""

    def __init__(self, served: Served, path: str, body: dict[str, Any]) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self._body: bytes | None = orjson.dumps(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 30000),
        }
        self.task = asyncio.create_task(served.app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.promise(12)
@pytest.mark.parametrize("script", [silent, endless])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
async def test_who_leaves_is_aborted_at_once(path: str, stream: bool, script: Script) -> None:
    async with serve(script) as served:
        connection = Connection(served, path, GENERATING[path] | {"stream": stream})
        await until(lambda: served.engine.requests and (connection.sent or not stream or script is silent))
        assert not served.engine.aborted
        connection.left.set()
        await until(lambda: served.engine.aborted)
        await asyncio.wait_for(connection.task, PATIENCE_S)
        assert served.engine.aborted == [request.rid for request in served.engine.requests]
        assert not served.front.tokenizer_manager.rid_to_state
    assert b"[DONE]" not in b"".join(message.get("body", b"") for message in connection.sent)


@pytest.mark.promise(13)
async def test_who_leaves_while_tokenizing_never_reaches_the_engine() -> None:
    async with serve(silent) as served:
        tokenizing, go_on = asyncio.Event(), asyncio.Event()
        run = served.front.text_pool.run

        async def slow(size: int, work: Any) -> Any:
            tokenizing.set()
            await go_on.wait()
            return await run(size, work)

        served.front.text_pool.run = slow  # type: ignore[method-assign]
        connection = Connection(served, "/v1/chat/completions", GENERATING["/v1/chat/completions"])
        await tokenizing.wait()
        connection.left.set()
        await asyncio.wait_for(connection.task, PATIENCE_S)
        go_on.set()
        await settled()
        assert not served.engine.sent
        assert not served.front.tokenizer_manager.rid_to_state


async def test_both_answers_of_one_request_are_aborted() -> None:
    async with serve(silent) as served:
        connection = Connection(served, "/v1/completions", {"prompt": ["a", "b"], "n": 2})
        await until(lambda: len(served.engine.requests) == 4)
        connection.left.set()
        await until(lambda: len(served.engine.aborted) == 4)
        await connection.task


async def test_the_docs_know_every_body() -> None:
    async with serve() as served:
        schema = (await served.client.get("/openapi.json")).json()
        assert (await served.client.get("/docs")).status_code == 200
    found = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or path == "/", path
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                reference = content["schema"]["$ref"]
                found[method, path] = reference.rpartition("/")[2]
    assert found["post", "/v1/chat/completions"] == "ChatCompletionRequest"
    assert found["post", "/generate"] == found["put", "/generate"] == "GenerateReqInput"
    schemas = schema["components"]["schemas"]
    assert set(found.values()) <= schemas.keys()
    assert not [name for name in schemas if "__" in name], "two models of one name"
    assert "top_logprobs" in schemas["ChatCompletionRequest"]["properties"]
    assert "sampling_params" in schemas["GenerateReqInput"]["properties"]
    references = [part.split('"')[0] for part in orjson.dumps(schema).decode().split("#/components/schemas/")[1:]]
    assert set(references) <= schemas.keys()


NASTY: list[Any] = [
    None, True, False, 0, -1, 1 << 31, 1 << 63, 1e308, -1e-300, 10**9, 5_000_000, "", "x", "\x00", "\ufffd", [], [None],
    [[]], [-1], [600], [1 << 40], {}, {"a": {"b": [{}]}}, {"-1": 1}, {"5": None}, ["a"] * 1000, "x" * 10_000, 0.5,
    [[1], "a"], [{"role": "user"}], [{"type": "text", "text": 3}],
]  # fmt: skip
FIELDS = [
    "text", "input_ids", "prompt", "messages", "sampling_params", "stream", "stream_options", "rid", "return_logprob",
    "logprob_start_len", "n", "stop", "top_logprobs_num", "token_ids_logprob", "logprobs", "top_logprobs",
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "seed", "logit_bias", "stop_token_ids",
    "echo", "best_of", "suffix", "tools", "tool_choice", "chat_template_kwargs", "extra_key", "cache_salt", "tokens",
    "max_completion_tokens", "continue_final_message", "abort_all", "model", "role", "content", "unheard_of",
]  # fmt: skip
PATHS = [*GENERATING, "/tokenize", "/detokenize", "/abort_request"]


def mutated(chance: random.Random, path: str) -> dict[str, Any]:
    """A body for `path`, sound but for a few fields that are not."""
    body = dict(GENERATING.get(path, {}))
    for _ in range(chance.randint(1, 3)):
        body[chance.choice(FIELDS)] = chance.choice(NASTY)
    if chance.random() < 0.3:
        body["sampling_params"] = {chance.choice(FIELDS): chance.choice(NASTY)}
    return body


@pytest.mark.promise(32)
@pytest.mark.parametrize("seed", range(4))
async def test_no_body_brings_it_down(seed: int) -> None:
    """Whatever is sent, the answer is a good one or names what is wrong; and the next request is served."""
    chance = random.Random(seed)
    async with serve(hello) as served:
        for _ in range(250):
            path = chance.choice(PATHS)
            body = mutated(chance, path)
            response = await served.post(path, body)
            assert response.status_code == 200 or 400 <= response.status_code < 500, (path, body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"], (path, body)
        assert (await served.post("/generate", {"text": "Hi"})).json()["text"] == "Hello world"
        assert not served.front.tokenizer_manager.rid_to_state


@pytest.mark.promise(32)
@pytest.mark.parametrize("path", PATHS)
async def test_bytes_that_are_no_body(path: str) -> None:
    async with serve(hello) as served:
        for content in (b"", b"{", b"\xff\xfe", b"null", b"[]", b'{"text": "\\ud800"}', b"[" * 9999, b'{"a":1e999}'):
            response = await served.client.post(
                path, content=content, headers=httpx.Headers({"content-type": "application/json"})
            )
            assert response.status_code == 400, (content, response.text)


async def test_the_page_of_the_api_needs_no_other_server() -> None:
    async with serve() as served:
        page = await served.client.get("/docs")
        parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert "//" not in page.text.split("<script>")[0] and "openapi.json" in page.text
        files = [await served.client.get("/" + part) for part in parts if not part.startswith("data:")]
    assert [file.status_code for file in files] == [200, 200]
    assert {file.headers["content-type"].partition(";")[0] for file in files} == {"text/css", "text/javascript"}
    assert all(len(file.content) > 100_000 for file in files)
