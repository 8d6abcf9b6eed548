"""custom_logit_processor on a real server: built-in ones, the operator's own, and strings that pretend to be code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

OWN = ("--logit-processor", "fixtures.own_processors:Counting", "fixtures.own_processors:Failing")
LITTLE = ("--max-total-tokens", "256", "--schedule-conservativeness", "0.1")
PICKLED = '{"callable": "80049526000000000000008c085f5f6d61696e5f5f948c0a"}'
PROMPT = [300, 400, 500]
GREEDY = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """With so little memory that requests in company are retracted."""
    with WarmServer("--log-level", "warning", "--dtype", "float32", *OWN, *LITTLE) as server:
        assert server.url
        yield server


def generate(server: ServerProcess, name: str | None = None, told: object = None, **params: Any) -> httpx.Response:
    body: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": {**GREEDY, "custom_params": told, **params}}
    return httpx.post(f"{server.url}/generate", json={**body, "custom_logit_processor": name}, timeout=PATIENCE_S)


def test_the_operators_own_in_company(server: ServerProcess) -> None:
    """Each row is told its own params and tokens; free rows beside them are left alone."""
    free = generate(server).json()["output_ids"]
    asks = [("Counting", {"first": 300 + 10 * i, "prompt": 3}) if i % 2 else (None, None) for i in range(12)]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda ask: generate(server, *ask).json(), asks))
    for (name, told), answer in zip(asks, answers, strict=True):
        expected = free if told is None else [*range(told["first"], told["first"] + 20)]
        assert answer["output_ids"] == expected, name
    assert_quiet(server.url)


def test_one_that_fails_ends_its_requests_alone(server: ServerProcess) -> None:
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(generate, server, "Failing", {"after": 9})
        counting = pool.submit(generate, server, "Counting", {"first": 300, "prompt": 3})
    assert failing.result().status_code == 500 and "logit processor" in failing.result().json()["error"]["message"]
    assert counting.result().json()["output_ids"] == [*range(300, 320)]
    assert "as it was told" in server.stderr
    assert_quiet(server.url)


def test_disallowed_tokens_beside_other_rules(server: ServerProcess) -> None:
    first = generate(server).json()["output_ids"]
    told = {"token_ids": sorted(set(first))}
    again = generate(server, "DisallowedTokensLogitsProcessor", told, logit_bias={str(first[0]): 50}).json()
    assert not set(again["output_ids"]) & set(first)
    only = generate(server, "DisallowedTokensLogitsProcessor", {"token_ids": [300]}, allowed_token_ids=[300, 301])
    assert only.json()["output_ids"] == [301] * 20


def test_a_thought_is_made_to_end(server: ServerProcess) -> None:
    """The ids of marks may be any tokens of the model."""
    told = {"thinking_budget": 4, "think_start_id": 500, "think_end_id": 600, "new_line_id": 700}
    ids = generate(server, "ThinkingBudgetLogitProcessor", told).json()["output_ids"]
    assert ids[4:6] == [700, 600] and 600 not in ids[:4]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_on_openais_routes(server: ServerProcess, path: str) -> None:
    prompt = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    fields = {"custom_logit_processor": "DisallowedTokensLogitsProcessor", "custom_params": {"token_ids": [5]}}
    body = {"model": "default", "max_tokens": 4, **prompt, **fields}
    httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S).raise_for_status()
    refused = httpx.post(f"{server.url}{path}", json={**body, "custom_logit_processor": PICKLED}, timeout=PATIENCE_S)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "custom_logit_processor"


def test_of_some_prompts_of_a_batch(server: ServerProcess) -> None:
    told = {"first": 300, "prompt": 3}
    body = {
        "input_ids": [PROMPT, PROMPT],
        "sampling_params": [{**GREEDY, "custom_params": told}, GREEDY],
        "custom_logit_processor": ["Counting", None],
    }
    counted, free = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).json()
    assert counted["output_ids"] == [*range(300, 320)] and free["output_ids"] == generate(server).json()["output_ids"]


@pytest.mark.parametrize(
    ("name", "told", "param", "words"),
    [
        (PICKLED, None, "custom_logit_processor", "no code that a request brings is run; name one of"),
        ("os:system", None, "custom_logit_processor", "Counting"),
        (None, {"a": 1}, "custom_params", "only for a custom_logit_processor"),
        ("DisallowedTokensLogitsProcessor", None, "custom_params", "token_ids"),
    ],
)
def test_refusals(server: ServerProcess, name: str | None, told: object, param: str, words: str) -> None:
    answer = generate(server, name, told)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"]


def test_max_thinking_tokens(server: ServerProcess) -> None:
    """The embedded model has marks of its own; what it begins by itself, it ends in time."""
    body = {"text": "<think>", "sampling_params": {**GREEDY, "skip_special_tokens": False}, "max_thinking_tokens": 3}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert "</think>" in answer.json()["text"]
    both = httpx.post(f"{server.url}/generate", json={**body, "custom_logit_processor": "Counting"}, timeout=PATIENCE_S)
    assert both.status_code == 400 and both.json()["error"]["param"] == "max_thinking_tokens"


def test_a_mark_that_a_user_wrote_opens_no_thought(server: ServerProcess) -> None:
    """Neither alone nor beside a grammar, which would forbid the token that ends a thought."""
    chat = {"model": "default", "messages": [{"role": "user", "content": "What is <think>?"}], "max_tokens": 12}
    chat = {**chat, "temperature": 0, "separate_reasoning": False}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a"]}}}}

    def content(**more: Any) -> str:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json={**chat, **more}, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    assert content(max_thinking_tokens=1) == content()
    assert content(max_thinking_tokens=1, **form) == '"a"'
    params = {**GREEDY, "regex": "ab", "ignore_eos": False}
    body = {"text": "<think>", "sampling_params": params, "max_thinking_tokens": 1}
    assert httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).json()["text"] == "ab"


@pytest.mark.parametrize(
    ("forbidden", "fields", "param"),
    [
        (range(4096), {}, "custom_params"),
        ([300], {"allowed_token_ids": [300]}, "custom_params"),
        ([0], {"allowed_token_ids": [0, 5], "bad_word_of": 5}, None),
        (range(3, 4096), {"regex": "ab"}, None),
        (range(3, 4096), {"min_new_tokens": 5, "stop_token_ids": [0, 1, 2]}, None),
    ],
)
def test_rules_that_leave_no_token(
    server: ServerProcess, forbidden: Sequence[int], fields: dict[str, Any], param: str | None
) -> None:
    """They are refused, or found in the step; a token that one of the rules forbids is never taken."""
    fields = dict(fields)
    if (token := fields.pop("bad_word_of", None)) is not None:
        word = httpx.post(f"{server.url}/detokenize", json={"tokens": [token]}, timeout=PATIENCE_S).json()["text"]
        fields["bad_words"] = [word]
    answer = generate(server, "DisallowedTokensLogitsProcessor", {"token_ids": [*forbidden]}, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"] == param and ("forbids every token" if param else "No token is left") in error["message"]
    assert_quiet(server.url)
