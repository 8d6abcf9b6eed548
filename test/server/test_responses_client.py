"""OpenAI's client speaking the Responses API with a real server and the embedded model."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import wait_until
from fixtures.server_process import ServerProcess

MODEL = "default"
FRANCE = "What is the capital of France?"
PARIS = "What is the weather in Paris?"
COUNT = "Count from 1 to 10."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The name of the city"}},
        "required": ["city"],
    },
}
THINK: Any = {"effort": "high"}


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{tiny_server.url}/v1", max_retries=0) as client:
        yield client
    assert_quiet(tiny_server.url)


def ask(client: openai.OpenAI, question: Any, **options: Any) -> Any:
    return client.responses.create(model=MODEL, input=question, **({"temperature": 0} | options))


def ask_in_pieces(client: openai.OpenAI, question: Any, **options: Any) -> Any:
    """The last event's response, of a stream that the client itself adds up."""
    options = {"temperature": 0} | options
    with client.responses.stream(model=MODEL, input=question, **options) as stream:
        events: list[Any] = list(stream)
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    return events[-1].response


def test_an_answer(client: openai.OpenAI) -> None:
    response = ask(client, FRANCE)
    assert "Paris" in response.output_text
    assert (response.status, response.model) == ("completed", "mysglang-tiny")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


@pytest.mark.parametrize("way", [ask, ask_in_pieces])
def test_a_conversation_that_the_server_keeps(client: openai.OpenAI, way: Any) -> None:
    response = way(client, PARIS, tools=[WEATHER], reasoning=THINK)
    kinds = [item.type for item in response.output if item.type != "message"]
    assert kinds == ["reasoning", "function_call"]
    call = response.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21}'}
    answer = way(client, [result], tools=[WEATHER], previous_response_id=response.id)
    assert "21" in answer.output_text


def test_a_form(client: openai.OpenAI) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"size": {"type": "integer", "maximum": 9}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "name": "size", "schema": schema}}
    response = client.responses.create(model=MODEL, input="Tell me a story.", text=form, temperature=1.2)
    assert json.loads(response.output_text).keys() == {"size"}


def test_what_is_kept(client: openai.OpenAI) -> None:
    first = ask(client, FRANCE)
    second = ask(client, COUNT, previous_response_id=first.id)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items: list[Any] = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_in_the_background(client: openai.OpenAI) -> None:
    response = ask(client, FRANCE, background=True)
    wait_until(lambda: client.responses.retrieve(response.id).status != "in_progress")
    response = client.responses.retrieve(response.id)
    assert "Paris" in response.output_text
    stopped = client.responses.cancel(ask(client, "Tell me a short story.", background=True).id)
    assert stopped.status in ("cancelled", "completed")


def test_a_stream_in_the_background_goes_on_without_its_client(client: openai.OpenAI) -> None:
    with client.responses.create(model=MODEL, input=FRANCE, background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number))
    assert rest[0].sequence_number == first.sequence_number + 1
    assert rest[-1].type == "response.completed"
    assert "Paris" in rest[-1].response.output_text


def test_log_probabilities_stand_beside_the_text(client: openai.OpenAI) -> None:
    wish: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0}
    whole = ask(client, FRANCE, **wish)
    [part] = whole.output[-1].content  # type: ignore[union-attr, misc]
    found = part.logprobs or []  # type: ignore[union-attr]
    assert "".join(entry.token for entry in found) == whole.output_text
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in found)
    pieces = []
    with client.responses.stream(model=MODEL, input=FRANCE, **wish) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                pieces += [entry.token for entry in event.logprobs]
    assert pieces == [entry.token for entry in found]


def test_errors_are_its_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, FRANCE, temperature=-1)
    assert bad.value.param == "temperature"
    assert ask_in_pieces(client, FRANCE, max_output_tokens=100_000).status == "completed"
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        ask(client, FRANCE, previous_response_id="resp_0")
