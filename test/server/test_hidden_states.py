"""return_hidden_states on a real server: transformers' numbers, whatever chunks, cache and company do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import torch
import transformers

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL

OPTIONS = ("--log-level", "warning", "--dtype", "float32", "--enable-return-hidden-states")
LITTLE = ("--chunked-prefill-size", "16", "--max-total-tokens", "256", "--schedule-conservativeness", "0.1")
SEVERAL = ("--tokenizer-worker-num", "2", "--detokenizer-worker-num", "2")
PROMPT = np.random.default_rng(5).integers(100, 1000, 45).tolist()
NEW = 20


@pytest.fixture(scope="module", params=[LITTLE, SEVERAL], ids=["little memory", "several fronts"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with WarmServer(*OPTIONS, *request.param) as server:
        assert server.url
        yield server
        assert_quiet(server.url)


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    torch.set_num_threads(1)
    return transformers.AutoModel.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32).eval()


def ask(server: ServerProcess, prompt: list[int], wish: bool | str = True, **body: Any) -> Any:
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": params, "return_hidden_states": wish, **body}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


@torch.inference_mode()
def expected(model: transformers.PreTrainedModel, prompt: list[int], output: list[int]) -> np.ndarray:
    """[tokens but the last one, hidden]."""
    states: torch.Tensor = model(torch.tensor([[*prompt, *output[:-1]]])).last_hidden_state[0]
    return states.numpy()


def told(answer: Any, prompt: list[int]) -> np.ndarray:
    first, *rest = answer["meta_info"]["hidden_states"]
    assert len(first) == len(prompt) and len(rest) == NEW - 1
    return np.asarray([*first, *rest], dtype=np.float32)


def test_transformers_numbers_in_company(server: ServerProcess, model: transformers.PreTrainedModel) -> None:
    """Prompts that begin alike, so that they would be found in the cache."""
    prompts = [PROMPT[:length] for length in (45, 30, 45, 1, 17, 40)]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda prompt: ask(server, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        right = expected(model, prompt, answer["output_ids"])
        assert np.abs(told(answer, prompt) - right).max() < 1e-3 * np.abs(right).max()


def test_from_the_last_token_on(server: ServerProcess, model: transformers.PreTrainedModel) -> None:
    ask(server, PROMPT)
    answer = ask(server, PROMPT, "last")
    assert answer["meta_info"]["cached_tokens"] == len(PROMPT) - 1
    states = np.asarray(answer["meta_info"]["hidden_states"])
    right = expected(model, PROMPT, answer["output_ids"])[len(PROMPT) - 1 :]
    assert states.shape == right.shape and np.abs(states - right).max() < 1e-3 * np.abs(right).max()


def test_of_some_prompts_of_a_batch(server: ServerProcess) -> None:
    with_all, without, with_last = ask(server, [PROMPT, PROMPT, PROMPT], [True, False, "last"])
    assert "hidden_states" not in without["meta_info"]
    assert len(with_last["meta_info"]["hidden_states"]) == NEW
    from_last = told(with_all, PROMPT)[len(PROMPT) - 1 :]
    assert np.allclose(from_last, with_last["meta_info"]["hidden_states"], atol=1e-3)


def test_a_stream_ends_with_the_whole(server: ServerProcess) -> None:
    whole = ask(server, PROMPT)
    body = {"input_ids": PROMPT, "return_hidden_states": True, "stream": True}
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    stream = httpx.post(f"{server.url}/generate", json={**body, "sampling_params": params}, timeout=PATIENCE_S)
    *frames, done = [frame.removeprefix("data: ") for frame in stream.text.split("\n\n") if frame]
    assert done == "[DONE]"
    assert np.allclose(told(orjson.loads(frames[-1]), PROMPT), told(whole, PROMPT), atol=1e-3)


@pytest.mark.parametrize(
    ("path", "wish"),
    [
        ("/v1/completions", True),
        ("/v1/completions", "last"),
        ("/v1/chat/completions", True),
        ("/v1/chat/completions", "last"),
    ],
)
def test_openais_routes_tell_the_last(server: ServerProcess, path: str, wish: object) -> None:
    prompt = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    body = {"model": "default", "temperature": 0, "max_tokens": 6, "return_hidden_states": wish, **prompt}
    [choice] = httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S).raise_for_status().json()["choices"]
    stream = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=PATIENCE_S).text
    frames = [orjson.loads(frame.removeprefix("data: ")) for frame in stream.split("\n\n")[:-2]]
    found = [one for frame in frames for one in frame["choices"] if "hidden_states" in (one.get("delta") or one)]
    [last] = [one.get("delta") or one for one in found]
    assert last["hidden_states"] == pytest.approx(choice["hidden_states"], abs=1e-3)
    assert frames[-1]["choices"] == found


def test_refused_without_the_flag(tiny_server: ServerProcess) -> None:
    for path, body in (
        ("/generate", {"text": "a", "return_hidden_states": True}),
        ("/v1/completions", {"prompt": "a", "return_hidden_states": True}),
    ):
        answer = httpx.post(f"{tiny_server.url}{path}", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "return_hidden_states"
        assert "--enable-return-hidden-states" in answer.json()["error"]["message"]
