"""Beam search on a real server: transformers' answers and scores, in company, with little memory, on every route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from fixtures.oracle import assert_quiet, forward_steps
from fixtures.patience import PATIENCE_S, wait_until
from fixtures.raw_http import Manner, ask
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL

LITTLE = ("--page-size", "16", "--max-total-tokens", "512", "--schedule-conservativeness", "0.1")
PROMPTS = [np.random.default_rng(i).integers(100, 1000, 5 + 7 * i).tolist() for i in range(3)]
CASES = [(2, 1.0, 12), (4, 1.0, 18), (4, 0.0, 18), (3, 2.0, 12), (5, -0.5, 9)]
"""(beam_width, length_penalty, max_new_tokens)."""


@pytest.fixture(scope="module")
def little_server() -> Iterator[ServerProcess]:
    with WarmServer("--log-level", "warning", "--dtype", "float32", *LITTLE) as server:
        yield server


@pytest.fixture(scope="module", params=["tiny_server", "little_server"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """One with plenty of memory, one with little."""
    server: ServerProcess = request.getfixturevalue(request.param)
    yield server
    assert_quiet(server.url)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32).eval()


Found = tuple[list[list[int]], list[float]]


@pytest.fixture(scope="module")
def expected(model: Any) -> Callable[..., Found]:
    """`generated` by the model; what a second server is compared with is not generated again."""
    known: dict[str, Found] = {}

    def asked(*search: Any, **more: Any) -> Found:
        key = f"{search} {more}"
        if key not in known:
            known[key] = generated(model, *search, **more)
        return known[key]

    return asked


def generated(model: Any, prompt: list[int], width: int, penalty: float, new: int, **more: Any) -> Found:
    """transformers' answers, EOS included and nothing behind it, and their scores."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=new,
        length_penalty=penalty,
        do_sample=False,
        early_stopping=False,
        return_dict_in_generate=True,
        output_scores=True,
        **more,
    )
    ends = model.generation_config.eos_token_id
    ends = {*ends} if isinstance(ends, list) else {ends}
    answers = []
    for row in found.sequences[:, len(prompt) :].tolist():
        end = next((i for i, token in enumerate(row) if token in ends), new)
        answers.append(row[: end + 1])
    return answers, found.sequences_scores.tolist()


def search(server: ServerProcess, prompt: Any, width: int, penalty: float, new: int, **params: Any) -> Any:
    told = {"beam_width": width, "n": width, "length_penalty": penalty, "max_new_tokens": new, **params}
    answer = httpx.post(
        f"{server.url}/generate", json={"input_ids": prompt, "sampling_params": told}, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def assert_same(answers: Any, right: Found) -> None:
    assert [answer["output_ids"] for answer in answers] == right[0]
    assert [answer["meta_info"]["sequence_score"] for answer in answers] == pytest.approx(right[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("width", "penalty", "new"), CASES)
def test_transformers_answers(
    server: ServerProcess, expected: Callable[..., Found], width: int, penalty: float, new: int
) -> None:
    """One prompt after the other, beside each other, and as a batch."""
    right = [expected(prompt, width, penalty, new) for prompt in PROMPTS]
    with ThreadPoolExecutor() as pool:
        beside = list(pool.map(lambda prompt: search(server, prompt, width, penalty, new), PROMPTS))
    for answers, one in zip(beside, right, strict=True):
        assert_same(answers, one)
    batch = search(server, PROMPTS, width, penalty, new)
    for i, one in enumerate(right):
        assert_same(batch[i * width : (i + 1) * width], one)


def test_answers_that_end(server: ServerProcess, expected: Callable[..., Found]) -> None:
    """A question that the model answers in a few tokens: searches that stop before their length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    messages = [{"role": "user", "content": "What is 2 plus 3?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    answers = search(server, prompt, 3, 1.0, 40)
    assert_same(answers, expected(prompt, 3, 1.0, 40))
    assert any(answer["meta_info"]["finish_reason"]["type"] == "stop" for answer in answers)
    for answer in answers:
        ids = answer["output_ids"]
        assert answer["text"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert answer["meta_info"]["completion_tokens"] == len(ids)
    later = search(server, prompt, 3, 1.0, 40, min_new_tokens=30)
    assert_same(later, expected(prompt, 3, 1.0, 40, min_new_tokens=30))


def test_a_search_reads_what_it_computed(server: ServerProcess) -> None:
    """All but the last page of every beginning comes from the cache."""
    best = search(server, PROMPTS[2], 4, 1.0, 8)[0]
    again = search(server, PROMPTS[2], 4, 1.0, 8)[0]
    assert again["output_ids"] == best["output_ids"]
    assert again["meta_info"]["cached_tokens"] >= len(PROMPTS[2]) - 16


def test_only_allowed_tokens(server: ServerProcess) -> None:
    for answer in search(server, PROMPTS[0], 4, 1.0, 6, allowed_token_ids=[300, 301, 302]):
        assert set(answer["output_ids"]) <= {300, 301, 302}


@pytest.mark.parametrize("few", [{"max_tokens": 0}, {"allowed_token_ids": [300]}, {"allowed_token_ids": [2]}])
@pytest.mark.parametrize("more", [{}, {"min_tokens": 3}])
def test_as_many_answers_as_asked_for(tiny_server: ServerProcess, few: dict[str, Any], more: dict[str, Any]) -> None:
    """Also where there are fewer different ones. Token 2 ends an answer."""
    body = {"prompt": "Once", "n": 3, "beam_width": 3, "max_tokens": 4, **more, **few}
    if few == {"max_tokens": 0}:
        body.pop("min_tokens", None)
    answer = httpx.post(f"{tiny_server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_as_vllm_asks(tiny_server: ServerProcess, path: str, stream: bool) -> None:
    prompt = {"prompt": "Once"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    body = {"model": "default", "max_tokens": 6, "n": 3, "use_beam_search": True, **prompt, "stream": stream}
    answer = httpx.post(f"{tiny_server.url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    if not stream:
        choices = answer.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]
        assert len(set(texts)) == 3
        assert answer.json()["usage"]["completion_tokens"] <= 18
    else:
        assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": 5}, "n"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 100}, "beam_width"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"stop": ["a"]}, "stop"),
        ({"regex": "a"}, "regex"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"beam_width": None, "length_penalty": 2}, "length_penalty"),
    ],
)
def test_refusals(tiny_server: ServerProcess, params: dict[str, Any], param: str) -> None:
    body = {"text": "a", "sampling_params": {"beam_width": 4, **params}}
    answer = httpx.post(f"{tiny_server.url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize(("field", "value"), [("return_logprob", True), ("max_thinking_tokens", 0)])
def test_what_one_request_alone_can_have(tiny_server: ServerProcess, field: str, value: Any) -> None:
    body = {"text": "a", "sampling_params": {"beam_width": 4}, field: value}
    answer = httpx.post(f"{tiny_server.url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


async def test_a_client_that_leaves_ends_its_search(tiny_server: ServerProcess) -> None:
    url, params = tiny_server.url, {"beam_width": 4, "max_new_tokens": 1500, "ignore_eos": True}
    begun = forward_steps(url)

    async def running() -> None:
        await asyncio.to_thread(wait_until, lambda: forward_steps(url) > begun)

    address = (httpx.URL(url).host, httpx.URL(url).port or 80)
    body = {"text": "a", "sampling_params": params}
    answer = await ask(address, "/generate", body, manner=Manner(leaves="reset", until=running))
    assert not answer.status, "the client left before its answer came"
    await asyncio.to_thread(assert_quiet, url)
    assert forward_steps(url) - begun < 1500


def test_an_aborted_search_gives_what_it_has(tiny_server: ServerProcess) -> None:
    params = {"beam_width": 4, "max_new_tokens": 1500, "ignore_eos": True}
    body = {"text": "a", "sampling_params": params, "rid": "searching"}
    begun = forward_steps(tiny_server.url)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, f"{tiny_server.url}/generate", json=body, timeout=PATIENCE_S)
        wait_until(lambda: forward_steps(tiny_server.url) > begun)
        httpx.post(f"{tiny_server.url}/abort_request", json={"rid": "searching"})
    assert answer.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
