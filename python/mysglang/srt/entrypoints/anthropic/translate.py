"""Anthropic's request -> the same request in OpenAI's words, which is what the chat path takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mysglang.srt.entrypoints.anthropic.protocol import (
    AnthropicTool,
    CountTokensRequest,
    Message,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.openai.chat_prompt import ThinkingWords
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.errors import InvalidRequest

NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
}
"""OpenAI's name of a field -> Anthropic's, where they differ."""

FAILED = "Error: "
"""Put before the result of a tool that failed: chat templates have no other way to say it."""


def chat_request(body: MessagesRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """`words`: what the model's chat template calls thinking. Raises InvalidRequest."""
    return _request(
        body,
        words,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )


def counted_request(body: CountTokensRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """The same for a prompt that is only counted."""
    return _request(body, words)


def _request(body: CountTokensRequest, words: ThinkingWords, **more: object) -> ChatCompletionRequest:
    schema = body.output_config.format
    format_ = None if schema is None else {"type": "json_schema", "json_schema": {"schema": schema.schema_}}
    fields: dict[str, object] = {
        "messages": _messages(body),
        "continue_final_message": body.messages[-1].role == "assistant",
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": not body.tool_choice.disable_parallel_tool_use,
        "chat_template_kwargs": _thinking(body, words),
        "response_format": format_,
        **more,
    }
    return validate(ChatCompletionRequest, fields)


def _messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    """Messages of one role that follow each other are one turn."""
    told = [{"role": "system", "content": _content(body.system)}] if body.system else []
    turns: list[dict[str, Any]] = []
    for message in body.messages:
        for turn in _turns(message):
            if turns and turn["role"] == turns[-1]["role"] != "tool":
                turns[-1] = _joined(turns[-1], turn)
            else:
                turns.append(turn)
    if turns[-1]["role"] == "assistant" and "tool_calls" in turns[-1]:
        raise InvalidRequest("messages: the last one uses tools, so that their results must follow.", param="messages")
    return told + [turn | {"content": _plain(turn["content"])} for turn in turns]


def _turns(message: Message) -> list[dict[str, Any]]:
    """OpenAI has a message for each result of a tool, and what an answer says and calls in one."""
    if message.role == "assistant":
        return [_assistant(message)]
    turns: list[dict[str, Any]] = []
    for block in message.content:
        match block:
            case ToolResultBlock():
                text = "\n".join(part.text for part in block.content)
                result = FAILED + text if block.is_error else text
                turns.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _parts(result)})
            case TextBlock():
                turns.append({"role": message.role, "content": _parts(block.text)})
    return turns


def _assistant(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": []}
    for block in message.content:
        match block:
            case TextBlock():
                turn["content"] += _parts(block.text)
            case ThinkingBlock():
                turn["reasoning_content"] = "\n".join([*filter(None, [turn.get("reasoning_content")]), block.thinking])
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                call = {"id": block.id, "type": "function", "function": function}
                turn["tool_calls"] = [*turn.get("tool_calls", []), call]
    return turn


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two turns of one role as one. Text and calls are lists, thoughts are text."""
    joined = first | {"content": first["content"] + second["content"]}
    if calls := first.get("tool_calls", []) + second.get("tool_calls", []):
        joined["tool_calls"] = calls
    if thoughts := [turn["reasoning_content"] for turn in (first, second) if "reasoning_content" in turn]:
        joined["reasoning_content"] = "\n".join(thoughts)
    return joined


def _content(blocks: Sequence[TextBlock]) -> object:
    return _plain([part for block in blocks for part in _parts(block.text)])


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _plain(parts: list[dict[str, str]]) -> object:
    """A string where there is one part; none is None, as for an answer that only calls tools."""
    if not parts:
        return None
    return parts[0]["text"] if len(parts) == 1 else parts


def _tool(tool: AnthropicTool) -> dict[str, object]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict or None,
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> object:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            return {"type": "function", "function": {"name": choice.name}}
    return choice.type


def _thinking(body: CountTokensRequest, words: ThinkingWords) -> dict[str, object]:
    """In the words of the chat template. Raises InvalidRequest where it has none.

    Where it knows no degrees, any effort is to think, unless that is switched off.
    """
    kind, effort = None if body.thinking is None else body.thinking.type, body.output_config.effort
    if kind == "enabled":
        words.require(field="thinking")
    kwargs = {} if kind is None and effort is None else words.switched(kind != "disabled")
    if effort is not None and words.effort is not None:
        kwargs[words.effort] = effort
    if effort is not None and not kwargs:
        message = "output_config.effort: the model's chat template has no way to ask for it."
        raise InvalidRequest(message, param="output_config")
    return kwargs
