"""Ollama's own client against a real server with the embedded model: prompts, formats, thoughts, tools, errors."""

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess

MODEL = "default"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count from 1 to 10."}]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[ollama.Client]:
    yield ollama.Client(tiny_server.url)
    assert_quiet(tiny_server.url)


def chat(client: ollama.Client, messages: list[Any], **options: Any) -> Any:
    return client.chat(MODEL, messages, options={**GREEDY, **options.pop("options", {})}, **options)


def test_an_answer(client: ollama.Client) -> None:
    answer = chat(client, FRANCE)
    assert "Paris" in answer.message.content
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", MODEL)
    assert answer.prompt_eval_count > 5
    assert answer.eval_count > 2
    assert 0 < answer.prompt_eval_duration < answer.total_duration
    assert "Paris" in client.generate(MODEL, "What is the capital of France?", options=GREEDY).response


def test_formats(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 9}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    hot = {"temperature": 1.3, "seed": 1, "num_predict": 200}
    found = json.loads(client.chat(MODEL, FRANCE, format=schema, options=hot).message.content or "")
    assert found.keys() == {"city", "size"}
    found = json.loads(client.generate(MODEL, "Describe Paris.", format=schema, options=hot).response)
    assert isinstance(found["size"], int)


def test_a_raw_prompt(client: ollama.Client) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    raw = client.generate(MODEL, prompt, raw=True, options=GREEDY)
    assert raw.response == client.generate(MODEL, "What is the capital of France?", options=GREEDY).response


def test_log_probabilities(client: ollama.Client) -> None:
    answer = chat(client, COUNT, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == answer.eval_count
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in answer.logprobs)


def test_the_model(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == "mysglang-tiny"
    assert (model.size or 0) > 10_000_000
    (running,) = client.ps().models
    assert running.model == model.model
    assert (running.size or 0) > 10_000_000
    shown = client.show(f"{model.model}:latest")
    assert set(shown.capabilities or []) == {"completion", "tools", "thinking"}
    assert (shown.modelinfo or {})["llama.context_length"] == 8192
    assert client.chat(MODEL, []).done_reason == "load"


def test_errors_are_its_own_exceptions(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="mirostat: not supported") as bad:
        chat(client, FRANCE, options={"mirostat": 1})
    assert bad.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=":mine' does not exist") as missing:
        list(client.chat(f"{MODEL}:mine", FRANCE, stream=True))
    assert missing.value.status_code == 404
