"""Calls of every client library to a real server with the embedded model: an answer and its stream, a conversation with
a thought and a tool, many at once, and a client that leaves.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import ollama
import openai
import pytest

from fixtures.oracle import assert_quiet, until_asked
from fixtures.server_process import ServerProcess

MODEL = "default"
FRANCE, PARIS = "What is the capital of France?", "What is the weather in Paris?"
COUNT, STORY = "Count from 1 to 10.", "Tell me a short story."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The name of the city"}},
    "required": ["city"],
}
TOOL: Any = {"name": "get_weather", "description": "Get the current weather in a city"}
RESULT = json.dumps({"temperature": 21, "condition": "sunny"})
MOST_TOKENS = 300


@dataclass
class Answer:
    """An answer as a library returns it."""

    text: str
    thought: str
    calls: list[tuple[str, Any]]
    reason: Any
    """Why it ended, in the words of the library."""
    tokens: int
    raw: Any = field(compare=False)
    """The library's own object."""
    pieces: int = field(compare=False, default=1)


@dataclass
class Wish:
    """Options of a request for an answer."""

    tools: bool = False
    think: bool = False
    stop: str = ""
    length: int = MOST_TOKENS


class Client(ABC):
    """One library, and the fields by which its users ask."""

    def __init__(self, url: str) -> None:
        self.url = url

    def user(self, question: str) -> list[Any]:
        return [{"role": "user", "content": question}]

    @abstractmethod
    def ask(self, messages: list[Any], wish: Wish, *, stream: bool) -> Answer: ...

    @abstractmethod
    def after_call(self, answer: Answer) -> list[Any]:
        """The messages that carry a call and its result."""

    @abstractmethod
    async def say(self, question: str, *, stream: bool) -> str:
        """The text of an answer, by the asynchronous client."""

    @abstractmethod
    async def leave(self) -> None:
        """Read the beginning of a story, and leave."""

    @abstractmethod
    async def story(self) -> Any:
        """A whole story."""


class OpenAI(Client):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        options: Any = {"api_key": "none", "base_url": f"{url}/v1", "max_retries": 0}
        self.sync, self.loop = openai.OpenAI(**options), openai.AsyncOpenAI(**options)


class Chat(OpenAI):
    def ask(self, messages: list[Any], wish: Wish, *, stream: bool) -> Answer:
        function = {"type": "function", "function": {**TOOL, "parameters": SCHEMA}}
        options: Any = {"temperature": 0, "model": MODEL, "messages": messages, "max_tokens": wish.length}
        options |= {"tools": [function]} if wish.tools else {}
        options |= {"stop": wish.stop} if wish.stop else {}
        options |= {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}} if wish.think else {}
        pieces = 1
        if stream:
            usage: Any = {"stream_options": {"include_usage": True}}
            with self.sync.chat.completions.stream(**options, **usage) as events:
                pieces = len([event for event in events if event.type == "chunk"])
                try:
                    completion: Any = events.get_final_completion()
                except openai.LengthFinishReasonError as cut:  # its way to say so, in a stream alone
                    completion = cut.completion
        else:
            completion = self.sync.chat.completions.create(**options)
        choice = completion.choices[0]
        message = choice.message
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
        thought = getattr(message, "reasoning_content", None) or ""
        return Answer(
            message.content or "",
            thought,
            calls,
            choice.finish_reason,
            completion.usage.completion_tokens,
            message,
            pieces,
        )

    def after_call(self, answer: Answer) -> list[Any]:
        (call,) = answer.raw.tool_calls
        function = {"name": call.function.name, "arguments": call.function.arguments}
        said = {"role": "assistant", "content": answer.raw.content, "reasoning_content": answer.thought}
        said["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        return [said, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]

    async def say(self, question: str, *, stream: bool) -> str:
        asked: Any = {"model": MODEL, "messages": self.user(question)}
        if stream:
            chunks: Any = await self.loop.chat.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        answer: Any = await self.loop.chat.completions.create(**asked)
        return str(answer.choices[0].message.content)

    async def leave(self) -> None:
        stream: Any = await self.loop.chat.completions.create(model=MODEL, messages=self.user(STORY), stream=True)
        await anext(aiter(stream))
        await stream.close()

    async def story(self) -> Any:
        return await self.loop.chat.completions.create(model=MODEL, messages=self.user(STORY))


class Responses(OpenAI):
    def ask(self, messages: list[Any], wish: Wish, *, stream: bool) -> Answer:
        options: Any = {"temperature": 0, "model": MODEL, "input": messages, "max_output_tokens": wish.length}
        options |= {"tools": [{"type": "function", **TOOL, "parameters": SCHEMA}]} if wish.tools else {}
        options |= {"extra_body": {"stop": wish.stop}} if wish.stop else {}
        options |= {"reasoning": {"effort": "high"}} if wish.think else {}
        pieces = 1
        if stream:
            with self.sync.responses.stream(**options) as events:
                found: list[Any] = list(events)
            numbers = [event.sequence_number for event in found]
            assert numbers == sorted(numbers)
            pieces, response = len(found), found[-1].response
        else:
            response = self.sync.responses.create(**options)
        items: list[Any] = response.output
        thought = "".join(part.text for item in items if item.type == "reasoning" for part in item.content)
        calls = [(item.name, json.loads(item.arguments)) for item in items if item.type == "function_call"]
        reason = (response.status, response.incomplete_details, [item.type for item in items])
        tokens = response.usage.output_tokens
        assert response.usage.total_tokens == response.usage.input_tokens + tokens
        return Answer(response.output_text, thought, calls, reason, tokens, items, pieces)

    def after_call(self, answer: Answer) -> list[Any]:
        said = []
        for item in answer.raw:
            plain = {name: value for name, value in item.to_dict().items() if value is not None}
            plain.pop("parsed_arguments", None)
            for part in plain.get("content", []):
                part.pop("parsed", None)
            said.append(plain)
        return [*said, {"type": "function_call_output", "call_id": answer.raw[-1].call_id, "output": RESULT}]

    async def say(self, question: str, *, stream: bool) -> str:
        if stream:
            events: Any = await self.loop.responses.create(model=MODEL, input=question, stream=True)
            return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
        return (await self.loop.responses.create(model=MODEL, input=question)).output_text

    async def leave(self) -> None:
        stream: Any = await self.loop.responses.create(model=MODEL, input=STORY, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()

    async def story(self) -> Any:
        return await self.loop.responses.create(model=MODEL, input=STORY)


class Anthropic(Client):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        options: Any = {"api_key": "none", "base_url": url, "max_retries": 0}
        self.sync, self.loop = anthropic.Anthropic(**options), anthropic.AsyncAnthropic(**options)

    def ask(self, messages: list[Any], wish: Wish, *, stream: bool) -> Answer:
        # The library has no word of its own for the temperature any more.
        options: Any = {"extra_body": {"temperature": 0}, "max_tokens": wish.length, "messages": messages}
        options |= {"model": MODEL}
        options |= {"tools": [{**TOOL, "input_schema": SCHEMA}]} if wish.tools else {}
        options |= {"stop_sequences": [wish.stop]} if wish.stop else {}
        options |= {"thinking": {"type": "enabled", "budget_tokens": 200}} if wish.think else {}
        pieces = 1
        if stream:
            with self.sync.messages.stream(**options) as events:
                pieces = len(list(events))
                message: Any = events.get_final_message()
        else:
            message = self.sync.messages.create(**options)
        blocks: list[Any] = message.content
        text = "".join(block.text for block in blocks if block.type == "text")
        thoughts = [block for block in blocks if block.type == "thinking"]
        assert all(thought.signature for thought in thoughts)
        calls = [(block.name, block.input) for block in blocks if block.type == "tool_use"]
        reason = (message.stop_reason, message.stop_sequence, [block.type for block in blocks])
        thought = "".join(block.thinking for block in thoughts)
        return Answer(text, thought, calls, reason, message.usage.output_tokens, message, pieces)

    def after_call(self, answer: Answer) -> list[Any]:
        result = {"type": "tool_result", "tool_use_id": answer.raw.content[-1].id, "content": RESULT}
        return [answer.raw.to_param(), {"role": "user", "content": [result]}]

    async def say(self, question: str, *, stream: bool) -> str:
        asked: Any = {"model": MODEL, "messages": self.user(question), "max_tokens": 50}
        if stream:
            async with self.loop.messages.stream(**asked) as pieces:
                return "".join([text async for text in pieces.text_stream])
        message: Any = await self.loop.messages.create(**asked)
        return str(message.content[0].text)

    async def leave(self) -> None:
        async with self.loop.messages.stream(model=MODEL, messages=self.user(STORY), max_tokens=500) as stream:
            async for event in stream:
                if event.type == "text":
                    break

    async def story(self) -> Any:
        return await self.loop.messages.create(model=MODEL, messages=self.user(STORY), max_tokens=500)


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: The name of the city
    """
    return RESULT


class Ollama(Client):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sync: Any = ollama.Client(url)
        self.loop: Any = ollama.AsyncClient(url)

    def ask(self, messages: list[Any], wish: Wish, *, stream: bool) -> Answer:
        options: Any = {"temperature": 0, "num_predict": wish.length} | ({"stop": [wish.stop]} if wish.stop else {})
        asked: Any = {"messages": messages, "options": options, "think": wish.think or None}
        asked |= {"tools": [get_weather]} if wish.tools else {}
        answers = list(self.sync.chat(MODEL, stream=True, **asked)) if stream else [self.sync.chat(MODEL, **asked)]
        said, last = [answer.message for answer in answers], answers[-1]
        text, thought = "".join(one.content for one in said), "".join(one.thinking or "" for one in said)
        calls = [call for one in said for call in one.tool_calls or []]
        message = {"role": "assistant", "content": text, "thinking": thought, "tool_calls": calls}
        functions = [(call.function.name, call.function.arguments) for call in calls]
        return Answer(text, thought, functions, last.done_reason, last.eval_count, message, len(answers))

    def after_call(self, answer: Answer) -> list[Any]:
        return [answer.raw, {"role": "tool", "tool_name": "get_weather", "content": RESULT}]

    async def say(self, question: str, *, stream: bool) -> str:
        if stream:
            pieces = await self.loop.chat(MODEL, self.user(question), stream=True)
            return "".join([piece.message.content or "" async for piece in pieces])
        return str((await self.loop.chat(MODEL, self.user(question))).message.content)

    async def leave(self) -> None:
        pieces = await self.loop.chat(MODEL, self.user(STORY), stream=True)
        await anext(pieces)
        await pieces.aclose()

    async def story(self) -> Any:
        return await self.loop.chat(MODEL, self.user(STORY))


@pytest.fixture(params=[Chat, Responses, Anthropic, Ollama])
def client(tiny_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    kind: type[Client] = request.param
    yield kind(tiny_server.url)
    assert_quiet(tiny_server.url)


@pytest.mark.parametrize(
    ("question", "wish"),
    [
        (FRANCE, Wish()),
        (COUNT, Wish(stop=" 6")),
        (COUNT, Wish(length=4)),
        (PARIS, Wish(tools=True)),
        (PARIS, Wish(tools=True, think=True)),
    ],
    ids=["text", "stopped", "cut", "tools", "thinking"],
)
def test_a_stream_says_the_same(client: Client, question: str, wish: Wish) -> None:
    messages = client.user(question)
    whole, stream = client.ask(messages, wish, stream=False), client.ask(messages, wish, stream=True)
    assert stream == whole
    assert stream.pieces > (0 if wish.tools else 2)
    if question == FRANCE:
        assert "Paris" in whole.text and whole.tokens > 2
    if wish.stop:
        assert wish.stop not in whole.text and "5" in whole.text
    if wish.length < MOST_TOKENS:
        assert whole.tokens == wish.length
    assert whole.calls == ([("get_weather", {"city": "Paris"})] if wish.tools else [])
    assert bool(whole.thought) == wish.think


@pytest.mark.parametrize("stream", [False, True])
def test_the_whole_conversation(client: Client, stream: bool) -> None:
    messages = client.user(PARIS)
    asked = client.ask(messages, Wish(tools=True, think=True), stream=stream)
    assert "get_weather" in asked.thought
    assert asked.calls == [("get_weather", {"city": "Paris"})]
    answer = client.ask([*messages, *client.after_call(asked)], Wish(tools=True), stream=stream)
    assert "21" in answer.text and not answer.calls


async def test_many_at_once(client: Client) -> None:
    cities = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
    asked = [(country, stream) for country in cities for stream in (True, False)]
    answers = await asyncio.gather(
        *(client.say(f"What is the capital of {country}?", stream=stream) for country, stream in asked)
    )
    for answer, (country, _) in zip(answers, asked, strict=True):
        assert cities[country] in answer


async def test_a_client_that_leaves_is_forgotten(client: Client) -> None:
    """In the midst of a stream, and while it waits for a whole answer. The fixture finds nothing left behind."""
    await client.leave()
    waiting = asyncio.create_task(client.story())
    await until_asked(client.url, waiting)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
