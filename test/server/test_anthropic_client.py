"""Anthropic's own client against a real server with the embedded model: text, thoughts, tools, streams, errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from fixtures.oracle import assert_quiet, until_asked
from fixtures.server_process import ServerProcess

MODEL = "default"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
PARIS: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count from 1 to 10."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The name of the city"}},
        "required": ["city"],
    },
}
GREEDY = {"temperature": 0}
"""The client has no word of its own for it any more."""
THINK: Any = {"type": "enabled", "budget_tokens": 200}


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="none", base_url=tiny_server.url, max_retries=0) as client:
        yield client
    assert_quiet(tiny_server.url)


@pytest.fixture
async def aclient(tiny_server: ServerProcess) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="none", base_url=tiny_server.url, max_retries=0) as client:
        yield client
    await asyncio.to_thread(assert_quiet, tiny_server.url)


def ask(client: anthropic.Anthropic, messages: list[Any], **options: Any) -> Any:
    options = {"extra_body": GREEDY, "max_tokens": 300} | options
    return client.messages.create(model=MODEL, messages=messages, **options)


def ask_in_pieces(client: anthropic.Anthropic, messages: list[Any], **options: Any) -> Any:
    """The same, added up by the client's own hands."""
    options = {"extra_body": GREEDY, "max_tokens": 300} | options
    with client.messages.stream(model=MODEL, messages=messages, **options) as stream:
        return stream.get_final_message()


def content(message: Any) -> list[dict[str, Any]]:
    """The blocks, without the names that are new in every answer."""
    return [{**block.to_dict(), "id": ""} for block in message.content]


def test_an_answer(client: anthropic.Anthropic) -> None:
    message = ask(client, FRANCE, system="Answer briefly.")
    assert "Paris" in message.content[0].text
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "mysglang-tiny")
    counted = client.messages.count_tokens(model=MODEL, messages=FRANCE, system="Answer briefly.")
    again = ask(client, FRANCE, system="Answer briefly.").usage
    assert counted.input_tokens == again.input_tokens + again.cache_read_input_tokens
    assert again.cache_read_input_tokens > 0
    assert message._request_id


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (COUNT, {}),
        (COUNT, {"stop_sequences": [" 6"]}),
        (COUNT, {"max_tokens": 4}),
        (PARIS, {"tools": [WEATHER]}),
        (PARIS, {"tools": [WEATHER], "thinking": THINK}),
    ],
    ids=["text", "stopped", "cut", "tools", "thinking"],
)
def test_a_stream_says_the_same(client: anthropic.Anthropic, messages: list[Any], options: dict[str, Any]) -> None:
    whole, pieces = ask(client, messages, **options), ask_in_pieces(client, messages, **options)
    assert content(pieces) == content(whole)
    assert (pieces.stop_reason, pieces.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert pieces.usage.output_tokens == whole.usage.output_tokens


def test_why_it_stopped(client: anthropic.Anthropic) -> None:
    stopped = ask(client, COUNT, stop_sequences=[" 6"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " 6")
    assert ask(client, COUNT, max_tokens=4).stop_reason == "max_tokens"


@pytest.mark.parametrize("way", [ask, ask_in_pieces])
def test_the_whole_conversation(client: anthropic.Anthropic, way: Any) -> None:
    message = way(client, PARIS, tools=[WEATHER], thinking=THINK)
    assert message.stop_reason == "tool_use"
    thought, call = message.content[0], message.content[-1]
    assert (thought.type, bool(thought.thinking), bool(thought.signature)) == ("thinking", True, True)
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
    messages = [*PARIS, message.to_param(), {"role": "user", "content": [result]}]
    answer = way(client, messages, tools=[WEATHER])
    assert answer.stop_reason == "end_turn"
    assert "21" in answer.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_be(client: anthropic.Anthropic, choice: Any) -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a short story."}]
    message = ask_in_pieces(client, story, tools=[WEATHER], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    assert isinstance(message.content[0].input["city"], str)
    assert all(block.type != "tool_use" for block in ask(client, PARIS, tool_choice={"type": "none"}).content)


def test_the_answer_goes_on(client: anthropic.Anthropic) -> None:
    message = ask(client, [*FRANCE, {"role": "assistant", "content": "The capital of France is"}])
    assert message.content[0].text.lstrip().startswith("Paris")


def test_errors_are_its_own_exceptions(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        ask(client, FRANCE, extra_body={"temperature": -1})
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        ask_in_pieces(client, [{"role": "user", "content": "word " * 10_000}], max_tokens=5)
    # What does not fit is cut, and another name is answered by the model that is served.
    assert ask_in_pieces(client, FRANCE, max_tokens=100_000).stop_reason == "end_turn"
    assert client.messages.create(model="claude", messages=FRANCE, max_tokens=5).model == "mysglang-tiny"
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="mysglang-tiny:adapter", messages=FRANCE, max_tokens=5)
    assert missing.value.type == "not_found_error"


async def test_many_at_once(aclient: anthropic.AsyncAnthropic) -> None:
    async def ask_one(country: str, stream: bool) -> str:
        messages: list[Any] = [{"role": "user", "content": f"What is the capital of {country}?"}]
        if stream:
            async with aclient.messages.stream(model=MODEL, messages=messages, max_tokens=50) as pieces:
                return "".join([text async for text in pieces.text_stream])
        message: Any = await aclient.messages.create(model=MODEL, messages=messages, max_tokens=50)
        text: str = message.content[0].text
        return text

    cities = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
    answers = await asyncio.gather(*(ask_one(country, stream) for country in cities for stream in (True, False)))
    for answer, city in zip(answers, [city for city in cities.values() for _ in range(2)], strict=True):
        assert city in answer


async def test_who_leaves_is_forgotten(aclient: anthropic.AsyncAnthropic, tiny_server: ServerProcess) -> None:
    """The fixture finds nothing left behind."""
    messages: list[Any] = [{"role": "user", "content": "Tell me a short story."}]
    async with aclient.messages.stream(model=MODEL, messages=messages, max_tokens=500) as stream:
        async for event in stream:
            if event.type == "text":
                break
    waiting = asyncio.create_task(aclient.messages.create(model=MODEL, messages=messages, max_tokens=500))
    await until_asked(tiny_server.url, waiting)
    waiting.cancel()
