"""Twice the messages, calls or tools of a conversation take about twice the work, in every dialect."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from mysglang.srt.entrypoints.anthropic import translate as anthropic
from mysglang.srt.entrypoints.anthropic.protocol import MessagesRequest
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.ollama import translate as ollama
from mysglang.srt.entrypoints.ollama.protocol import OllamaChatRequest
from mysglang.srt.entrypoints.openai.chat_prompt import ThinkingWords
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.responses import translate as responses
from mysglang.srt.entrypoints.openai.responses.protocol import ResponsesRequest
from mysglang.srt.entrypoints.openai.strict_calls import call_behind_messages, framed_calls, strict_calls
from mysglang.srt.entrypoints.openai.tool_constraint import list_of_calls, list_schema
from mysglang.srt.function_call.core_types import CallsFrame, CallStructure
from mysglang.srt.function_call.json_detectors import GptOssDetector
from mysglang.srt.function_call.tagged_detectors import Qwen3CoderDetector
from mysglang.srt.function_call.tool_schema import OfferedTools
from mysglang.srt.parser.template_manager import TemplateManager

pytestmark = pytest.mark.promise(42)

FEW, MORE = 500, 8
MOST = 4 * MORE
"""Work of MORE times as much, in that of FEW: MORE if it is linear, its square if it is quadratic."""
TRIES = 3
LOOKS = 8
"""A comparison that does not hold is made again, so often at most: a busy host adds to some, and a square to all."""
JOINED = 8
"""Times as many of what is joined to one turn: to copy a list is quick, so it takes a long one to tell."""

WORDS = ThinkingWords((), None, separates_thoughts=False)
USER = {"role": "user", "content": "a"}
Work = Callable[[], object]


def anthropic_request(messages: list[Any]) -> Work:
    body = validate(MessagesRequest, {"model": "m", "max_tokens": 5, "messages": messages})
    # Without the check of what comes out, which would hide it.
    return lambda: anthropic._messages(body)


def anthropic_turn(count: int) -> Work:
    return anthropic_request([USER] * (JOINED * count))


def anthropic_calls(count: int) -> Work:
    thought = {"type": "thinking", "thinking": "t"}
    call = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": "a"}
    count *= JOINED
    answers = [{"role": "assistant", "content": [thought, call]}] * count
    return anthropic_request([USER, *answers, {"role": "user", "content": [result] * count}])


def responses_calls(count: int) -> Work:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "x"}
    count *= JOINED
    body = validate(ResponsesRequest, {"input": [USER, *[call] * count, *[result] * count]})
    items = responses.stored_items(body.input)
    return lambda: responses._messages(items)


def ollama_messages(count: int) -> Work:
    body = validate(OllamaChatRequest, {"model": "m", "messages": [USER] * count})
    return lambda: ollama.chat_request(body, WORDS)


def chat_messages(count: int) -> Work:
    return lambda: validate(ChatCompletionRequest, {"messages": [USER] * count})


def rendered(count: int) -> Work:
    templates = TemplateManager({}, {}, "chatml")
    return lambda: templates.render([USER] * count)


def tools(count: int) -> ChatCompletionRequest:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    found = [
        {"function": {"name": f"f{number}", "parameters": {**schema, "$defs": {f"d{number}": {"type": "string"}}}}}
        for number in range(count)
    ]
    return validate(ChatCompletionRequest, {"messages": [USER], "tools": found})


def offered(count: int) -> Work:
    body = tools(count)
    return lambda: OfferedTools([tool.as_sent() for tool in body.tools])


def constrained(count: int) -> Work:
    functions = [tool.function for tool in tools(count).tools]
    structured = [(function, [CallStructure("<a", "<a>", "</a>")]) for function in functions]
    strict = [function.model_copy(update={"strict": True}) for function in functions]
    marked = [(function, Qwen3CoderDetector.structures(function.name)) for function in strict]
    spoken = [(function, GptOssDetector.structures(function.name)) for function in strict]
    head = GptOssDetector.answer_head
    assert head is not None

    def work() -> None:
        strict_calls(structured, special=False)
        strict_calls(marked, special=False)
        framed_calls(marked, CallsFrame(), several=True, special=False)
        call_behind_messages(spoken, head, special=False)
        list_of_calls(functions, several=True)
        list_schema(functions, several=True)

    return work


def cost(work: Work) -> float:
    """Seconds of this thread on a processor, the best of several tries. Collections grow with what others hold."""
    times = []
    gc.disable()
    try:
        for _ in range(TRIES):
            begun = time.thread_time()
            work()
            times.append(time.thread_time() - begun)
    finally:
        gc.enable()
    return min(times)


@pytest.mark.parametrize(
    "make",
    [
        *(anthropic_turn, anthropic_calls, responses_calls, ollama_messages, chat_messages, rendered),
        *(tools, offered, constrained),
    ],
    ids=lambda make: make.__name__,
)
def test_the_work_grows_as_the_request_does(make: Callable[[int], Work | ChatCompletionRequest]) -> None:
    def work(count: int) -> Work:
        made = make(count)
        return made if callable(made) else lambda: make(count)

    few, many = work(FEW), work(MORE * FEW)
    assert any(cost(many) < MOST * cost(few) for _ in range(LOOKS))
