"""A request of the Responses API -> the same request in the words of chat; items -> messages.

An item is a unit that the API stores and reports: a message, a thought, a call, or the result of a call. In chat, what
an assistant thought, said and called in one turn is one message.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Any, TypeAlias

from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.responses.protocol import (
    LOGPROBS,
    ChosenFunction,
    Item,
    ResponsesRequest,
    ResponsesTool,
    SchemaFormat,
)
from mysglang.srt.entrypoints.sampling_body import in_openai_words
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import checkpoint

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
"""Chat's name of a field -> that of the Responses API, where they differ."""

StoredItem: TypeAlias = dict[str, Any]
"""An item as clients get to see it."""

ID_BYTES = 24
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_item_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{secrets.token_hex(ID_BYTES)}"


def stored_items(items: Sequence[Item], before: Sequence[StoredItem] = ()) -> list[StoredItem]:
    """Returns the items of the client as they are stored: every item has an id, which no other one has.

    `before`: the conversation that they continue. Raises InvalidRequest.
    """
    known = {item["id"] for item in before}
    for item in items:
        if item.id in known:
            raise InvalidRequest(f"input: two items of the conversation have the id {item.id!r}.", param="input")
        if item.id:
            known.add(item.id)
    return [
        {**item.model_dump(exclude_none=True), "id": item.id or new_item_id(item.type), "status": "completed"}
        for item in items
    ]


def chat_request(body: ResponsesRequest, items: Sequence[StoredItem]) -> ChatCompletionRequest:
    """Translates the body to a chat completion request. `items`: the whole conversation. Raises InvalidRequest."""
    logprobs = LOGPROBS in body.include
    fields = {
        "messages": [*_instructions(body), *_messages(items)],
        "max_tokens": body.max_output_tokens,
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": _tool_choice(body.tool_choice),
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort,
        "logprobs": logprobs,
        "top_logprobs": body.top_logprobs,
        # One by one, because tokens are reported with the text that they made.
        "stream": body.stream or logprobs,
    }
    same = ("parallel_tool_calls", "chat_template_kwargs", "cache_salt")
    as_said = {**in_openai_words(body, "responses"), **{name: getattr(body, name) for name in same}}
    return validate(ChatCompletionRequest, {**fields, **as_said})


def encrypted(thought: str) -> str:
    """Encodes a thought as a token that clients can send back. It is only encoded, not secret."""
    return base64.b64encode(thought.encode()).decode()


def _decrypted(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:  # of base64 or of UTF-8, or since the text is not even ASCII
        raise InvalidRequest("input: encrypted_content is none of this server's.", param="input") from None


def _instructions(body: ResponsesRequest) -> list[dict[str, Any]]:
    return [] if body.instructions is None else [{"role": "system", "content": body.instructions}]


def _messages(items: Sequence[StoredItem]) -> list[dict[str, Any]]:
    if not items:
        raise InvalidRequest("input: must not be empty.", param="input")
    _require_outputs(items)
    messages: list[dict[str, Any]] = []
    for item in items:
        checkpoint()
        message = _message(item)
        if messages and message["role"] == messages[-1]["role"] == "assistant" and _goes_on(messages[-1], message):
            _add(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _require_outputs(items: Sequence[StoredItem]) -> None:
    answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    if missing := [call_id for call_id in called if call_id not in answered]:
        raise InvalidRequest(f"input: there is no output of the function call {missing[0]!r}.", param="input")


def _message(item: StoredItem) -> dict[str, Any]:
    match item:
        case {"type": "message", "role": role, "content": content}:
            return {"role": role, "content": _text(content)}
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            return {"role": "assistant", "tool_calls": [call]}
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            return {"role": "tool", "tool_call_id": call_id, "content": _text(output)}
    thought = "".join(part["text"] for part in item.get("content", []))
    return {"role": "assistant", "reasoning_content": thought or _decrypted(item.get("encrypted_content", ""))}


def _goes_on(turn: dict[str, Any], message: dict[str, Any]) -> bool:
    """True if the assistant's next message belongs to its turn: a second thought or text begins another turn."""
    return "tool_calls" in message or (
        "tool_calls" not in turn and not turn.keys() & message.keys() & {"content", "reasoning_content"}
    )


def _add(turn: dict[str, Any], message: dict[str, Any]) -> None:
    """Add a message to the turn that it belongs to. Calls are added in place: a turn may have thousands."""
    calls = message.pop("tool_calls", [])
    turn |= message
    if calls:
        turn.setdefault("tool_calls", []).extend(calls)


def _text(parts: Sequence[dict[str, Any]]) -> object:
    """Returns the text itself if there is only one part, else a list of text parts."""
    if len(parts) == 1:
        return parts[0]["text"]
    return [{"type": "text", "text": part["text"]} for part in parts]


def _tool(tool: ResponsesTool) -> dict[str, object]:
    return {"type": "function", "function": tool.model_dump(exclude_unset=True, exclude={"type"})}


def _tool_choice(choice: str | ChosenFunction) -> object:
    if isinstance(choice, ChosenFunction):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _response_format(body: ResponsesRequest) -> dict[str, Any]:
    if isinstance(body.text.format, SchemaFormat):
        return {"type": "json_schema", "json_schema": body.text.format.model_dump(by_alias=True, exclude={"type"})}
    return body.text.format.model_dump(by_alias=True, exclude_unset=True)
