"""A stream says what the whole answer says: text, thoughts, calls, why it ended, log-probabilities and usage; in every
dialect, for requests that are drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import stream_folds as folds
from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

Body = dict[str, Any]

# A pair of answers takes a server as long as hundreds of calls take a unit test.
EXAMPLES = settings.default.max_examples // 14  # type: ignore[union-attr]
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

QUESTIONS = st.sampled_from(
    [
        "What is the weather in Paris and Rome?",
        "What is the weather in Paris?",
        "What is the capital of France?",
        "Count from 1 to 10.",
        "Tell me a short story.",
        "日本の首都は? 🗼",
        "Say nothing.",
    ]
)
PROMPTS = st.sampled_from(["Once upon a time", "1, 2, 3,", "The capital of France is", "🗼 東京", "a"])
STOPS = st.lists(st.sampled_from([" the", "o", "5", "\n", "Paris", ", ", "</tool_call>", "."]), max_size=2, unique=True)
HEAT = st.one_of(st.just(0.0), st.floats(0.3, 1.6))
LENGTHS = st.integers(1, 32)
SEEDS = st.integers(0, 2**31)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 60 * 60)]


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny_server.url, timeout=PATIENCE_S) as client:
        yield client
    assert_quiet(tiny_server.url)


def compare(
    client: httpx.Client,
    path: str,
    body: Body,
    whole: Callable[[Any], list[folds.Told]],
    stream: Callable[[Sequence[folds.Answer], int], list[folds.Told]],
    *,
    read: Callable[[str], list[folds.Answer]] = folds.events,
    more: Body | None = None,
) -> list[folds.Told]:
    """Contents of both answers. `more`: fields for the stream alone."""
    answered = client.post(path, json={**body, "stream": False})
    assert answered.status_code == 200, answered.text
    streamed = client.post(path, json={**body, "stream": True, **(more or {})})
    assert streamed.status_code == 200, streamed.text
    expected = whole(answered.json())
    found = stream(read(streamed.text), len(expected))
    for one, other in zip(found, expected, strict=True):
        assert one.reason is not None
        assert one.matches(other)
    return found


@st.composite
def chats(draw: st.DrawFn) -> Body:
    """Tools, thoughts and formats, cut off anywhere."""
    logprobs = draw(st.one_of(st.none(), st.integers(0, 3)))
    body: Body = {
        "messages": [{"role": "user", "content": draw(QUESTIONS)}],
        "temperature": draw(HEAT),
        "seed": draw(SEEDS),
        "n": draw(st.integers(1, 3)),
        "max_tokens": draw(LENGTHS),
        "stop": draw(STOPS),
        "no_stop_trim": draw(st.booleans()),
        "ignore_eos": draw(st.booleans()),
        "presence_penalty": draw(st.sampled_from([0.0, 0.5])),
        "chat_template_kwargs": {"enable_thinking": draw(st.booleans())},
        "separate_reasoning": draw(st.booleans()),
        "return_token_ids": draw(st.booleans()),
        "return_prompt_token_ids": draw(st.booleans()),
    }
    if logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": logprobs}
    kind = draw(st.sampled_from(["plain", "tools", "must call", "one call", "format"]))
    if kind == "format":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    elif kind != "plain":
        body["tools"] = [{"type": "function", "function": WEATHER}]
        body["tool_choice"] = "required" if kind == "must call" else "auto"
        body["parallel_tool_calls"] = kind != "one call"
    return body


@pytest.mark.promise(29)
@given(body=chats())
@settings(max_examples=EXAMPLES)
def test_chat(client: httpx.Client, body: Body) -> None:
    usage = {"stream_options": {"include_usage": True}}
    compare(client, "/v1/chat/completions", body, folds.chat_whole, folds.chat_stream, more=usage)


@given(
    body=st.fixed_dictionaries(
        {
            "prompt": st.one_of(PROMPTS, st.lists(PROMPTS, min_size=1, max_size=3)),
            "temperature": HEAT,
            "seed": SEEDS,
            "n": st.integers(1, 3),
            "max_tokens": LENGTHS,
            "stop": STOPS,
            "echo": st.booleans(),
            "logprobs": st.one_of(st.none(), st.integers(0, 3)),
            "return_token_ids": st.booleans(),
            "ignore_eos": st.booleans(),
            "frequency_penalty": st.sampled_from([0.0, 0.5]),
            "min_tokens": st.sampled_from([0, 1]),
        }
    )
)
@settings(max_examples=EXAMPLES)
def test_completions(client: httpx.Client, body: Body) -> None:
    usage = {"stream_options": {"include_usage": True}}
    compare(client, "/v1/completions", body, folds.completion_whole, folds.completion_stream, more=usage)


def _only_what_is_asked(body: Body) -> Body:
    """Details of log-probabilities may only be asked for together with them."""
    return body if body["return_logprob"] else {name: body[name] for name in body if name not in LOGPROB_FIELDS}


LOGPROB_FIELDS = ("logprob_start_len", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs")
NATIVE = st.fixed_dictionaries(
    {
        "text": st.one_of(PROMPTS, st.lists(PROMPTS, min_size=1, max_size=3)),
        "sampling_params": st.fixed_dictionaries(
            {
                "temperature": HEAT,
                "sampling_seed": SEEDS,
                "max_new_tokens": LENGTHS,
                "n": st.integers(1, 3),
                "stop": STOPS,
                "no_stop_trim": st.booleans(),
                "ignore_eos": st.booleans(),
                "stream_interval": st.sampled_from([None, 1, 3]),
            }
        ),
        "return_logprob": st.booleans(),
        "logprob_start_len": st.sampled_from([-1, 0]),
        "top_logprobs_num": st.integers(0, 3),
        "token_ids_logprob": st.sampled_from([None, [1, 5, 7]]),
        "return_text_in_logprobs": st.booleans(),
        "return_prompt_token_ids": st.booleans(),
    }
).map(_only_what_is_asked)


@pytest.mark.promise(29)
@given(body=NATIVE)
@settings(max_examples=EXAMPLES)
def test_generate(client: httpx.Client, body: Body) -> None:
    def stream(frames: Sequence[folds.Answer], choices: int) -> list[folds.Told]:
        return folds.native_stream(frames, choices, incremental=False)

    compare(client, "/generate", body, folds.native_whole, stream)


@pytest.fixture(scope="module")
def incremental_client() -> Iterator[httpx.Client]:
    options = ("--log-level", "warning", "--dtype", "float32", "--incremental-streaming-output")
    with WarmServer(*options) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        yield client
        assert_quiet(server.url)


@given(body=NATIVE)
@settings(max_examples=EXAMPLES)
def test_generate_in_increments(incremental_client: httpx.Client, body: Body) -> None:
    def stream(frames: Sequence[folds.Answer], choices: int) -> list[folds.Told]:
        return folds.native_stream(frames, choices, incremental=True)

    compare(incremental_client, "/generate", body, folds.native_whole, stream)


@given(
    body=st.fixed_dictionaries(
        {
            "input": QUESTIONS,
            "temperature": HEAT,
            "seed": SEEDS,
            "max_output_tokens": LENGTHS,
            "reasoning": st.sampled_from([{}, {"effort": "high"}]),
            "tools": st.sampled_from([[], [{"type": "function", **WEATHER}]]),
            "store": st.just(False),
        }
    )
)
@settings(max_examples=EXAMPLES)
def test_responses(client: httpx.Client, body: Body) -> None:
    compare(client, "/v1/responses", body, folds.response_whole, folds.response_stream)


TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}


@given(
    body=st.fixed_dictionaries(
        {
            "model": st.just("default"),
            "messages": QUESTIONS.map(lambda text: [{"role": "user", "content": text}]),
            "max_tokens": LENGTHS,
            "stop_sequences": STOPS,
            "tools": st.sampled_from([[], [TOOL]]),
            "thinking": st.sampled_from([{"type": "disabled"}, {"type": "adaptive"}]),
            # This dialect has no seed.
            "temperature": st.just(0),
        }
    )
)
@settings(max_examples=EXAMPLES)
def test_messages(client: httpx.Client, body: Body) -> None:
    compare(client, "/v1/messages", body, folds.message_whole, folds.message_stream)


@st.composite
def ollama_fields(draw: st.DrawFn) -> Body:
    logprobs = draw(st.one_of(st.none(), st.integers(0, 3)))
    return {
        "model": "default",
        "think": draw(st.booleans()),
        "format": draw(st.sampled_from([None, None, "json", PERSON])),
        "options": {
            "temperature": draw(HEAT),
            "seed": draw(SEEDS),
            "num_predict": draw(LENGTHS),
            "stop": draw(STOPS),
        },
        **({} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}),
    }


@given(fields=ollama_fields(), question=QUESTIONS, with_tools=st.booleans())
@settings(max_examples=EXAMPLES)
def test_ollama_chat(client: httpx.Client, fields: Body, question: str, with_tools: bool) -> None:
    body = {**fields, "messages": [{"role": "user", "content": question}]}
    if with_tools and body["format"] is None:
        body["tools"] = [{"type": "function", "function": WEATHER}]
    compare(client, "/api/chat", body, folds.ollama_whole, folds.ollama_stream, read=folds.lines)


@given(fields=ollama_fields(), prompt=PROMPTS, raw=st.booleans())
@settings(max_examples=EXAMPLES)
def test_ollama_generate(client: httpx.Client, fields: Body, prompt: str, raw: bool) -> None:
    body = {**fields, "prompt": prompt, "raw": raw}
    if raw:
        body["think"] = None
    compare(client, "/api/generate", body, folds.ollama_whole, folds.ollama_stream, read=folds.lines)
