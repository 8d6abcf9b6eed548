"""Anthropic's request -> the same request in OpenAI's words, which is what the chat path takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from mysglang.srt.entrypoints.sampling_body import in_openai_words
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import checkpoint

NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
}
"""OpenAI's name of a field -> Anthropic's, where they differ."""


def names_for(body: CountTokensRequest) -> Mapping[str, str]:
    """Returns OpenAI's names of fields -> those that this client sent."""
    return NAMES if body.output_format is None else NAMES | {"response_format": "output_format"}


FAILED = "Error: "
"""Put before the result of a tool that failed: chat templates have no other way to say it."""


def chat_request(body: MessagesRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """Translates the body to a chat completion request. `words`: how the model's chat template spells thinking. Raises
    InvalidRequest.
    """
    return _request(
        body,
        words,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        **in_openai_words(body, "anthropic"),
    )


def counted_request(body: CountTokensRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """Returns the chat request of a prompt that is only counted."""
    return _request(body, words)


def _request(body: CountTokensRequest, words: ThinkingWords, **more: object) -> ChatCompletionRequest:
    schema = body.output_config.format or body.output_format
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
    """Translates the messages. Consecutive messages of one role become one."""
    system = [{"role": "system", "content": _content(body.system)}] if body.system else []
    turns: list[_Turn] = []
    for message in body.messages:
        checkpoint()
        for turn in _turns(message):
            if turns and turn.role == turns[-1].role != "tool":
                turns[-1].add(turn)
            else:
                turns.append(turn)
    if turns[-1].calls:
        raise InvalidRequest("messages: the last one uses tools, so that their results must follow.", param="messages")
    return system + [turn.message() for turn in turns]


@dataclass(slots=True)
class _Turn:
    """One of OpenAI's messages that grows. What is added is appended without copying."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answers: str | None = None
    """The id of the call that it is the result of."""

    def add(self, other: _Turn) -> None:
        self.texts += other.texts
        self.thoughts += other.thoughts
        self.calls += other.calls

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": _plain(self.texts)}
        if self.answers is not None:
            message["tool_call_id"] = self.answers
        if self.thoughts:
            message["reasoning_content"] = "\n".join(filter(None, self.thoughts))
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _turns(message: Message) -> list[_Turn]:
    """Returns the OpenAI messages of one Anthropic message. OpenAI has a message of its own for each tool result, while
    the text and the tool calls of an answer are one message."""
    if message.role == "assistant":
        return [_assistant(message)]
    turns: list[_Turn] = []
    for block in message.content:
        match block:
            case ToolResultBlock():
                text = "\n".join(part.text for part in block.content)
                result = FAILED + text if block.is_error else text
                turns.append(_Turn("tool", [result], answers=block.tool_use_id))
            case TextBlock():
                turns.append(_Turn(message.role, [block.text]))
    return turns


def _assistant(message: Message) -> _Turn:
    turn = _Turn("assistant")
    for block in message.content:
        match block:
            case TextBlock():
                turn.texts.append(block.text)
            case ThinkingBlock():
                turn.thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                turn.calls.append({"id": block.id, "type": "function", "function": function})
    return turn


def _content(blocks: Sequence[TextBlock]) -> object:
    return _plain([block.text for block in blocks])


def _plain(texts: Sequence[str]) -> object:
    """Returns a single text as a string, several as a list, and None for none, as in an answer that only calls
    tools.
    """
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


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
    """Translates `thinking` and the effort to fields of the chat template. Raises InvalidRequest if the template has
    none.

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
