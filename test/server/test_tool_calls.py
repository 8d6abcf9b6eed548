"""Tools and thoughts through OpenAI's client, the embedded model calling them: from the question to the answer."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.srt.args.resolve import EMBEDDED_MODEL

MODEL = "default"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city"}},
            "required": ["city"],
        },
    },
}
PARIS: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
BOTH: list[Any] = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]
THINK: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{tiny_server.url}/v1", max_retries=0) as client:
        yield client
    assert_quiet(tiny_server.url)


def ask(client: openai.OpenAI, messages: list[Any] = PARIS, **options: Any) -> Any:
    options = {"temperature": 0, "tools": [WEATHER]} | options
    return client.chat.completions.create(model=MODEL, messages=messages, **options).choices[0]


def ask_in_pieces(client: openai.OpenAI, messages: list[Any] = PARIS, **options: Any) -> Any:
    """The same answer, added up by the client's own code."""
    options = {"temperature": 0, "tools": [WEATHER]} | options
    with client.chat.completions.stream(model=MODEL, messages=messages, **options) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0]


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    calls = choice.message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


class Report(pydantic.BaseModel):
    """Type of an agent's answer."""

    sunny: bool


def test_an_agent_with_tools_and_a_type_of_answer(client: openai.OpenAI) -> None:
    """The client sends strict tools and a response_format in every turn: the model calls, then it answers."""
    city = pydantic.create_model("get_weather", __doc__="Get the current weather in a city", city=str)
    tools = [openai.pydantic_function_tool(city)]
    options: dict[str, Any] = {"model": MODEL, "temperature": 0, "tools": tools, "response_format": Report}
    asked = client.chat.completions.parse(messages=PARIS, **options).choices[0].message
    assert asked.tool_calls and asked.parsed is None
    [call] = asked.tool_calls
    arguments = call.function.parsed_arguments
    assert isinstance(arguments, city) and "Paris" in arguments.model_dump()["city"]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns: list[Any] = [*PARIS, asked.model_dump(exclude_none=True, exclude={"parsed"}), result]
    answer = client.chat.completions.parse(messages=turns, tool_choice="none", **options).choices[0].message
    assert isinstance(answer.parsed, Report) and not answer.tool_calls


def test_a_call(client: openai.OpenAI) -> None:
    choice = ask(client)
    assert calls_of(choice) == [("get_weather", {"city": "Paris"})]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ""


def test_a_streamed_call_says_the_same(client: openai.OpenAI) -> None:
    for messages in (PARIS, BOTH):
        whole, streamed = ask(client, messages), ask_in_pieces(client, messages)
        assert calls_of(streamed) == calls_of(whole) != []
        assert [call.function.arguments for call in streamed.message.tool_calls] == [
            call.function.arguments for call in whole.message.tool_calls
        ]
        assert streamed.finish_reason == "tool_calls"


@pytest.mark.parametrize("seed", range(6))
def test_drawn_answers_say_the_same(client: openai.OpenAI, seed: int) -> None:
    """So hot that calls come out broken, and cut off at any place."""
    options: Any = {
        "model": MODEL,
        "messages": BOTH,
        "tools": [WEATHER],
        "temperature": 1.0 + seed / 4,
        "seed": seed,
        "n": 4,
        "max_tokens": 12 + 9 * seed,
        "extra_body": THINK if seed % 2 else {},
    }
    whole = client.chat.completions.create(**options)
    told: list[dict[str, Any]] = [{"thought": "", "text": "", "calls": []} for _ in whole.choices]
    for chunk in client.chat.completions.create(**options, stream=True):
        choice: Any = chunk.choices[0]
        found = told[choice.index]
        found["thought"] += choice.delta.reasoning_content or ""
        found["text"] += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.id:
                found["calls"].append([call.function.name, ""])
            found["calls"][-1][1] += call.function.arguments
        found["reason"] = choice.finish_reason
    for found, answer in zip(told, whole.choices, strict=True):
        message: Any = answer.message
        assert found == {
            "thought": message.reasoning_content or "",
            "text": message.content,
            "calls": [[call.function.name, call.function.arguments] for call in message.tool_calls or []],
            "reason": answer.finish_reason,
        }


def test_the_name_comes_before_the_arguments(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=PARIS, tools=[WEATHER], temperature=0, stream=True)
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    functions = [delta.function for delta in deltas if delta.function is not None]
    assert (deltas[0].id or "").startswith("call_")
    assert [function.name for function in functions] == ["get_weather"] + [None] * (len(functions) - 1)
    assert len(functions) > 2, "the arguments come as they are written"


def test_one_call_at_a_time(client: openai.OpenAI) -> None:
    assert len(calls_of(ask(client, BOTH))) == 2
    assert len(calls_of(ask(client, BOTH, parallel_tool_calls=False))) == 1


def test_a_question_that_needs_no_tool(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    assert "Paris" in ask(client, question).message.content
    choice = ask(client, tool_choice="none")
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_thoughts_and_then_a_call(client: openai.OpenAI) -> None:
    for choice in (ask(client, extra_body=THINK), ask(client, reasoning_effort="high")):
        assert "get_weather" in choice.message.reasoning_content
        assert "think>" not in choice.message.reasoning_content + choice.message.content
        assert calls_of(choice) == [("get_weather", {"city": "Paris"})]
    stream = client.chat.completions.create(
        model=MODEL, messages=PARIS, tools=[WEATHER], temperature=0, stream=True, extra_body=THINK
    )
    deltas: list[Any] = [chunk.choices[0].delta for chunk in stream]
    assert "".join(delta.reasoning_content or "" for delta in deltas) == choice.message.reasoning_content
    kinds = ["thought" if delta.reasoning_content else "call" for delta in deltas[1:-1]]
    assert kinds == sorted(kinds, reverse=True), "first it thinks, then it calls"
    answer = client.chat.completions.create(model=MODEL, messages=PARIS, extra_body=THINK)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 2 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) < answer.usage.completion_tokens
    raw = ask(client, extra_body={**THINK, "separate_reasoning": False}).message
    assert raw.content.startswith("<think>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    """The question does not need the tool, and the temperature is high."""
    hello = [{"role": "user", "content": "Tell me a short story."}]
    options: Any = {"tool_choice": choice, "temperature": 1.2, "seed": 3, "max_tokens": 300}
    ask_it = ask_in_pieces if stream else ask
    found = ask_it(client, hello, **options)
    calls = calls_of(found)
    assert calls
    assert {name for name, _ in calls} == {"get_weather"}
    assert all(isinstance(arguments["city"], str) for _, arguments in calls)
    assert found.finish_reason == "tool_calls"


def test_a_strict_tool(client: openai.OpenAI) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    strict["function"]["parameters"] = WEATHER["function"]["parameters"] | {"additionalProperties": False}
    assert calls_of(ask(client, tools=[strict])) == [("get_weather", {"city": "Paris"})]


def test_a_strict_tool_whose_marks_are_special_tokens(tmp_path: Path) -> None:
    """Without a grammar, the same answer: special tokens may be written in it, and are shown to be read."""
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED_MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = token["special"] or token["content"] in ("<tool_call>", "</tool_call>")
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    strict["function"]["parameters"] = WEATHER["function"]["parameters"] | {"additionalProperties": False}
    with (
        WarmServer("--model-path", str(model)) as server,
        openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client,
    ):
        for question in (PARIS, BOTH):
            free, held = ask(client, question), ask(client, question, tools=[strict])
            assert calls_of(held) == calls_of(free) != []
            assert held.finish_reason == "tool_calls"
        assert calls_of(ask_in_pieces(client, BOTH, tools=[strict])) == calls_of(held)


def test_a_schema_that_is_none(client: openai.OpenAI) -> None:
    broken = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "colour"}}}}}
    with pytest.raises(openai.BadRequestError, match=r"tools: .*colour"):
        ask(client, tools=[broken], tool_choice="required")


def test_a_text_from_elsewhere(tiny_server: ServerProcess) -> None:
    text = '<think>Hm.</think><tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    thoughts = httpx.post(f"{tiny_server.url}/separate_reasoning", json={"text": text}).json()
    assert thoughts["reasoning_text"] == "Hm."
    body = {"text": thoughts["text"], "tools": [WEATHER]}
    found = httpx.post(f"{tiny_server.url}/parse_function_call", json=body).json()
    assert found == {"normal_text": "", "calls": [{"tool_index": 0, "name": "get_weather", "parameters": "{}"}]}
