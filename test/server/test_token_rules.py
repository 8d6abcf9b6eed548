"""bad_words and allowed_token_ids on a real server: on every route, with company, streamed or not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def generate(server: ServerProcess, **params: Any) -> Any:
    return post(server, "/generate", text=PROMPT, sampling_params={**GREEDY, **params})


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if word.isalpha() and len(word) > 2]


def test_bad_words_are_not_said(tiny_server: ServerProcess) -> None:
    """One word after the other is forbidden, as the model comes to say them; free neighbours are not disturbed."""
    plain = generate(tiny_server)["text"]
    banned: list[str] = []
    with ThreadPoolExecutor() as pool:
        for _ in range(4):
            free = pool.submit(generate, tiny_server)
            said = words_of(generate(tiny_server, bad_words=banned)["text"] if banned else plain)
            assert not set(said) & set(banned)
            assert free.result()["text"] == plain
            banned.append(said[0])
    assert_quiet(tiny_server.url)


def test_only_allowed_tokens_are_said(tiny_server: ServerProcess) -> None:
    allowed = [300, 301, 400]
    for params in ({}, {"temperature": 1.0}, {"n": 3, "temperature": 1.0}):
        answers = generate(tiny_server, allowed_token_ids=allowed, **params)
        for answer in answers if isinstance(answers, list) else [answers]:
            assert len(answer["output_ids"]) == 24 and set(answer["output_ids"]) <= set(allowed)


@pytest.mark.parametrize("bias", [{"300": 1e308}, {"300": 1e39, "301": -1e308}, {"300": 1e25}])
def test_a_huge_bias_decides(tiny_server: ServerProcess, bias: dict[str, float]) -> None:
    for params in ({}, {"temperature": 1e-6}, {"temperature": 1.0, "top_p": 0.5}, {"repetition_penalty": 1e-6}):
        assert set(generate(tiny_server, logit_bias=bias, max_new_tokens=6, **params)["output_ids"]) == {300}


def test_the_highest_temperature_keeps_to_the_rules(tiny_server: ServerProcess) -> None:
    """No logit becomes infinite or no number, of which no token could be chosen."""
    hot = {"temperature": 1e20, "max_new_tokens": 4}
    assert set(generate(tiny_server, **hot, allowed_token_ids=[300, 301])["output_ids"]) <= {300, 301}
    assert set(generate(tiny_server, **hot, regex="[ab]{4}", ignore_eos=False)["text"]) <= {"a", "b"}
    for params in ({"temperature": 1e21}, {"repetition_penalty": 1e-7}):
        refused = httpx.post(f"{tiny_server.url}/generate", json={"text": PROMPT, "sampling_params": params})
        assert refused.status_code == 400 and next(iter(params)) in refused.text


def test_on_openais_routes(tiny_server: ServerProcess) -> None:
    ask = {"model": "default", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}]}),
    ):
        [choice] = post(tiny_server, path, **ask, **prompt)["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        word = words_of(text)[0]
        [choice] = post(tiny_server, path, **ask, **prompt, bad_words=[word])["choices"]
        assert word not in words_of(choice["text"] if "text" in choice else choice["message"]["content"])
        [choice] = post(tiny_server, path, **ask, **prompt, allowed_token_ids=[300], logprobs=False or None)["choices"]
        assert choice["finish_reason"] == "length"


def test_together_with_a_grammar(tiny_server: ServerProcess) -> None:
    """A token must be allowed by both; where none is, the request says so and ends."""
    pytest.importorskip("xgrammar")
    zero, nine = (post(tiny_server, "/tokenize", prompt=digit, add_special_tokens=False)["tokens"] for digit in "09")
    assert len(zero) == len(nine) == 1
    answer = generate(tiny_server, regex="[0-9]{6}", allowed_token_ids=[*zero, *nine, 2], ignore_eos=False)
    assert set(answer["text"]) <= {"0", "9"} and len(answer["text"]) == 6
    params = {**GREEDY, "regex": "1{3}", "allowed_token_ids": [*zero]}
    failed = httpx.post(
        f"{tiny_server.url}/generate", json={"text": PROMPT, "sampling_params": params}, timeout=PATIENCE_S
    )
    assert failed.status_code in (400, 500), failed.text
    assert_quiet(tiny_server.url)


@pytest.mark.parametrize("stream", [False, True])
def test_when_nothing_is_left_that_is_said(tiny_server: ServerProcess, stream: bool) -> None:
    word = generate(tiny_server, allowed_token_ids=[300], max_new_tokens=1)["text"].strip()
    params = {**GREEDY, "allowed_token_ids": [300], "bad_words": [word]}
    body = {"text": PROMPT, "sampling_params": params, "stream": stream}
    answer = httpx.post(f"{tiny_server.url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400 and "bad_words" in answer.json()["error"]["message"]
    assert_quiet(tiny_server.url)
