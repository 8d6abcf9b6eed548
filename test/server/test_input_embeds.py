"""input_embeds on a real server: a prompt as vectors answers as its ids do, whatever chunks, cache and memory do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL

LITTLE = ("--chunked-prefill-size", "16", "--max-total-tokens", "256", "--schedule-conservativeness", "0.1")
IDS = np.random.default_rng(7).integers(100, 1000, 50).tolist()
PARAMS = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}


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
def table() -> np.ndarray:
    """The model's embedding."""
    model = transformers.AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL, dtype=torch.float32)
    weight: np.ndarray = model.get_input_embeddings().weight.detach().numpy()
    return weight


def post(server: ServerProcess, **body: Any) -> httpx.Response:
    body = {"sampling_params": PARAMS, **body}
    return httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)


def outputs(answers: Any) -> Any:
    return [answer["output_ids"] for answer in answers] if isinstance(answers, list) else answers["output_ids"]


def test_as_the_ids_that_they_stand_for(server: ServerProcess, table: np.ndarray) -> None:
    """One after the other, in company, as a batch, and with several answers."""
    prompts = [IDS[:length] for length in (50, 1, 23, 49)]
    expected = [outputs(post(server, input_ids=prompt).json()) for prompt in prompts]
    vectors = [table[prompt].tolist() for prompt in prompts]
    with ThreadPoolExecutor() as pool:
        alone = list(pool.map(lambda prompt: outputs(post(server, input_embeds=prompt).json()), vectors))
    assert alone == expected
    assert outputs(post(server, input_embeds=vectors).json()) == expected
    assert outputs(post(server, input_embeds=vectors[:1]).json()) == expected[:1]
    several = post(server, input_embeds=vectors[0], sampling_params={**PARAMS, "n": 3}).json()
    assert outputs(several) == [expected[0]] * 3


def test_nothing_is_shared(server: ServerProcess, table: np.ndarray) -> None:
    """Not with ids, of which the vectors have none, and not with other vectors."""
    httpx.post(f"{server.url}/flush_cache").raise_for_status()  # other tests ask the same server for ids
    first = post(server, input_embeds=table[IDS].tolist()).json()
    other = post(server, input_embeds=(2 * table[IDS]).tolist()).json()
    assert first["meta_info"]["cached_tokens"] == other["meta_info"]["cached_tokens"] == 0
    assert other["output_ids"] != first["output_ids"]
    assert post(server, input_ids=[0] * 50).json()["meta_info"]["cached_tokens"] == 0
    assert first["meta_info"]["prompt_tokens"] == 50


def test_penalties_know_no_token_of_it(server: ServerProcess, table: np.ndarray) -> None:
    """The tokens of a prompt of vectors are unknown, so a strong penalty forbids only generated ones."""
    params = {**PARAMS, "repetition_penalty": 1.9}
    answer = post(server, input_embeds=table[[0] * 9].tolist(), sampling_params=params)
    assert answer.status_code == 200 and len(answer.json()["output_ids"]) == 20


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input_embeds": [[1.0, 2.0]]}, "input_embeds", "numbers, the size of the model's hidden states"),
        ({"input_embeds": []}, "input_embeds", "must not be empty"),
        ({"input_embeds": [[]]}, "input_embeds", "size of the model"),
        ({"input_embeds": [[1.0], [1.0, 2.0]]}, "input_embeds", "size of the model"),
        ({"input_embeds": [["a"]]}, "input_embeds", "lists of 256 numbers"),
        ({"input_embeds": [[1.0]], "text": "a"}, "text", "Exactly one"),
        ({"input_embeds": [[1.0]], "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len", "no tokens"),
        ({"input_embeds": [[1.0]], "return_prompt_token_ids": True}, "return_prompt_token_ids", "no token ids"),
    ],
)
def test_what_is_wrong_is_named(tiny_server: ServerProcess, body: dict[str, Any], param: str, words: str) -> None:
    answer = post(tiny_server, **body)
    assert answer.status_code == 400, answer.text
    assert param in answer.json()["error"]["param"] and words in answer.json()["error"]["message"]


def test_limits(tiny_server: ServerProcess, table: np.ndarray) -> None:
    size = table.shape[1]
    for number in (1e39, -1e39):
        huge = post(tiny_server, input_embeds=[[number] * size])
        assert huge.status_code == 400 and "finite" in huge.json()["error"]["message"]
    context = httpx.get(f"{tiny_server.url}/server_info").json()["scheduler_info"]["context_len"]
    long = post(tiny_server, input_embeds=[[0] * size] * context)
    assert long.status_code == 400 and long.json()["error"]["param"] == "input_embeds"
