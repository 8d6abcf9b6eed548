"""Answers from a running server through its OpenAI API, many requests at a time.

A server with parsers gives thoughts and tool calls in fields of their own; here they become the model's text again.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tqdm import tqdm

from mysglang.bench.address import Address
from mysglang.bench.refused import Failed
from mysglang.eval.exam import LONGEST_ANSWER, Item, ToolCall, Turn, answer_text

CONCURRENCY = 32
TIMEOUT_SECONDS = 300


def answers(items: Sequence[Item], url: str) -> Iterator[str]:
    """Yields the greedy answer to each item, in order. Raises Refused for an invalid URL, Failed if no server answers
    or the server refuses.
    """
    Address.of(url, "--url")
    base = url.rstrip("/").removesuffix("/v1")
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        yield from tqdm(pool.map(lambda item: _ask(base, item), items), total=len(items), unit="item", disable=None)


def _ask(base: str, item: Item) -> str:
    body: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": LONGEST_ANSWER}
    if item.raw:
        reply = _post(f"{base}/v1/completions", {**body, "prompt": item.turns[0].content})
        return str(reply["choices"][0]["text"])
    body |= {"messages": _messages(item), "chat_template_kwargs": {"enable_thinking": item.thinking}}
    if item.tools:
        body["tools"] = list(item.tools)
    return message_text(_post(f"{base}/v1/chat/completions", body)["choices"][0]["message"])


def _messages(item: Item) -> list[dict[str, Any]]:
    """Returns the messages as the API has them: a call has an id, and its arguments are JSON in a string."""
    messages = item.messages()
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = "call_0"
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if message["role"] == "tool":
            message["tool_call_id"] = "call_0"
    return messages


def message_text(message: dict[str, Any]) -> str:
    """Returns the text that the model wrote, put together again from a chat message."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = tuple(ToolCall(function["name"], json.loads(function["arguments"])) for function in functions)
    thought = (message.get("reasoning_content") or "").strip("\n")
    content = message.get("content") or ""
    return answer_text(Turn("assistant", content.strip("\n") if calls or thought else content, calls, thought), True)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            reply: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise Failed(f"{url} answered {error.code} (--tasks leaves tasks out): {said}") from None
    except OSError as error:
        raise Failed(f"no server answers at {url} ({getattr(error, 'reason', error)}).") from None
    except ValueError:
        raise Failed(f"{url} answered with what is not JSON.") from None
    return reply
