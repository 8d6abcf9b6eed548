"""Anthropic's own client and a real server, beside what all clients do (test_clients.py): reasons, calls, errors."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from fixtures.oracle import assert_quiet
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


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="none", base_url=tiny_server.url, max_retries=0) as client:
        yield client
    assert_quiet(tiny_server.url)


def ask(client: anthropic.Anthropic, messages: list[Any], **options: Any) -> Any:
    options = {"extra_body": GREEDY, "max_tokens": 300} | options
    return client.messages.create(model=MODEL, messages=messages, **options)


def ask_in_pieces(client: anthropic.Anthropic, messages: list[Any], **options: Any) -> Any:
    """The same answer, added up by the client's own code."""
    options = {"extra_body": GREEDY, "max_tokens": 300} | options
    with client.messages.stream(model=MODEL, messages=messages, **options) as stream:
        return stream.get_final_message()


def test_an_answer(client: anthropic.Anthropic) -> None:
    message = ask(client, FRANCE, system="Answer briefly.")
    assert "Paris" in message.content[0].text
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "mysglang-tiny")
    counted = client.messages.count_tokens(model=MODEL, messages=FRANCE, system="Answer briefly.")
    again = ask(client, FRANCE, system="Answer briefly.").usage
    assert counted.input_tokens == again.input_tokens + again.cache_read_input_tokens
    assert again.cache_read_input_tokens > 0
    assert message._request_id


def test_why_it_stopped(client: anthropic.Anthropic) -> None:
    stopped = ask(client, COUNT, stop_sequences=[" 6"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " 6")
    assert ask(client, COUNT, max_tokens=4).stop_reason == "max_tokens"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_must_be(client: anthropic.Anthropic, choice: Any) -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a short story."}]
    message = ask_in_pieces(client, story, tools=[WEATHER], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    assert isinstance(message.content[0].input["city"], str)
    assert all(block.type != "tool_use" for block in ask(client, PARIS, tool_choice={"type": "none"}).content)


def test_its_tool_runner(client: anthropic.Anthropic) -> None:
    """The runner asks for a thread first, which this server does not keep, and then goes on without one."""
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city"""
        asked.append(city)
        return "It is sunny."

    runner = client.beta.messages.tool_runner(
        model=MODEL, messages=PARIS, tools=[get_weather], max_tokens=300, extra_body=GREEDY, max_iterations=2
    )
    first, last = runner
    assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert asked == ["Paris"]


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
