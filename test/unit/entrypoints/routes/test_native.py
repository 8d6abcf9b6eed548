"""/generate over a scripted engine: single, batch, streams so far and incremental, refusals."""

import orjson
import pytest

from fixtures.scripted_engine import events, serve, small
from fixtures.wired import Wired
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.managers.shares import MAX_LOGPROBS

PATH = "/generate"


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_one_prompt(method: str) -> None:
    async with serve() as served:
        response = await served.client.request(method, PATH, json={"text": "Hi", "rid": "r"})
    answer = response.json()
    meta = answer.pop("meta_info")
    assert answer == {"text": "Hello world", "output_ids": [7, 8, 9, 2]}
    assert meta["id"] == "r"
    assert meta["finish_reason"] == {"type": "stop", "matched": 2}
    assert meta["prompt_tokens"] == len(small("byte_level").encode("Hi"))
    assert meta["completion_tokens"] == 4
    assert meta["cached_tokens"] == 4
    assert meta["e2e_latency"] >= 0


async def test_the_prompt_s_ids_if_asked_for() -> None:
    async with serve() as served:
        batch = (await served.post(PATH, {"text": ["a", "b"], "return_prompt_token_ids": True})).json()
        plain = (await served.post(PATH, {"text": "a"})).json()
    assert [answer["prompt_token_ids"] for answer in batch] == [small("byte_level").encode(text) for text in "ab"]
    assert "prompt_token_ids" not in plain


async def test_a_batch_and_several_answers() -> None:
    async with serve() as served:
        batch = (await served.post(PATH, {"text": ["a", "b"]})).json()
        lone = (await served.post(PATH, {"input_ids": [[5]]})).json()
        twice = (await served.post(PATH, {"text": "a", "sampling_params": {"n": 2}})).json()
    assert [len(answers) for answers in (batch, lone, twice)] == [2, 1, 2]


async def test_a_stream_holds_everything_so_far() -> None:
    async with serve() as served:
        response = await served.post(PATH, {"text": "Hi", "stream": True})
    *frames, done = events(response.content)
    assert done == b"[DONE]"
    found = [orjson.loads(frame) for frame in frames]
    assert [frame["text"] for frame in found] == ["Hello", "Hello", "Hello world"]
    assert [frame["output_ids"] for frame in found] == [[7], [7, 8], [7, 8, 9, 2]]
    assert [frame["meta_info"]["finish_reason"] for frame in found] == [None, None, {"type": "stop", "matched": 2}]
    assert all("index" not in frame for frame in found)


async def test_an_incremental_stream_of_a_batch() -> None:
    async with serve(options=AppOptions(incremental_streaming_output=True)) as served:
        response = await served.post(PATH, {"text": ["a", "b"], "stream": True})
    found = [orjson.loads(frame) for frame in events(response.content)[:-1]]
    for index in range(2):
        assert [frame["text"] for frame in found if frame["index"] == index] == ["Hello", "", " world"]


@pytest.mark.parametrize(
    ("content", "headers", "words"),
    [
        (b'{"text": ', {}, "not valid JSON"),
        (b'{"text": "a", "sampling_params": {"temperature": NaN}}', {}, "line 1 column 50"),
        (b'["text"]', {}, "must be a JSON object"),
        (b'{"text": "a"}', {"content-type": "text/plain"}, "application/json"),
        (b"\x1f\x8b\x08", {"content-encoding": "gzip"}, "must be identity, got 'gzip'"),
    ],
)
async def test_bodies_that_are_no_json(content: bytes, headers: dict[str, str], words: str) -> None:
    async with serve() as served:
        response = await served.client.post(
            PATH, content=content, headers={"content-type": "application/json"} | headers
        )
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


async def test_a_body_without_end() -> None:
    async with serve() as served:
        headers = {"content-type": "application/json", "content-length": str(100 << 20)}
        response = await served.client.post(PATH, content=b"{}", headers=headers)
    assert response.status_code == 413


async def test_more_log_probabilities_than_a_request_may_ask_for() -> None:
    body = {
        "text": "Hi",
        "sampling_params": {"n": 64, "max_new_tokens": 250},
        "return_logprob": True,
        "top_logprobs_num": 128,
        "token_ids_logprob": [5] * 1024,
    }
    async with serve() as served:
        wired = Wired(served.app)
        wired.post(PATH, body)
        await wired.until(lambda: b"\r\n\r\n" in wired.transport.written)
        head, _, text = wired.transport.written.partition(b"\r\n\r\n")
        assert served.front.tokenizer_manager.open_requests == 0
    error = orjson.loads(text)["error"]
    assert head.startswith(b"HTTP/1.1 400") and error["param"] == "return_logprob"
    assert f"at most {MAX_LOGPROBS} log-probabilities; this one asks for 1153 at each position" in error["message"]


async def test_a_grammar_behind_a_thought() -> None:
    body = {"text": "Hi", "require_reasoning": True, "sampling_params": {"regex": "a+"}}
    async with serve(options=AppOptions(reasoning_parser="qwen3")) as served:
        assert (await served.post(PATH, body)).status_code == 200
        assert served.engine.requests[-1].grammar_after
    async with serve() as served:
        refused = await served.post(PATH, body)
        plain = await served.post(PATH, {"text": "Hi", "require_reasoning": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "require_reasoning")
    assert plain.status_code == 200
