"""Answers of Anthropic's routes, described for /openapi.json; `serving.py` and `events.py` build them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.anthropic.errors import AnthropicError
from mysglang.srt.entrypoints.openapi import Answer


class Said(Answer, tag_field="type", tag="text"):
    """A content block: text for the user."""

    text: str


class Thought(Answer, tag_field="type", tag="thinking"):
    """A content block: a thought of the model."""

    thinking: str
    signature: str


class ToolUse(Answer, tag_field="type", tag="tool_use"):
    """A content block: a call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock: TypeAlias = Said | Thought | ToolUse

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class ThinkingTokens(Answer):
    """The number of tokens of an answer that belong to its thoughts."""

    thinking_tokens: int


class MessageUsage(Answer):
    """The tokens of a request. Tokens that were found in the cache do not count as input."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class AnthropicMessage(Answer, tag_field="type", tag="message"):
    """Answer to POST /v1/messages."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(Answer):
    """Answer to POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(Answer, tag_field="type", tag="message_start"):
    """Stream event: the message begins."""

    message: AnthropicMessage


class Ping(Answer, tag_field="type", tag="ping"):
    """Stream event that keeps the connection alive."""


class BlockStart(Answer, tag_field="type", tag="content_block_start"):
    """Stream event: a content block begins."""

    index: int
    content_block: AnswerBlock


class ThinkingDelta(Answer, tag_field="type", tag="thinking_delta"):
    """More text of a thought."""

    thinking: str


class SignatureDelta(Answer, tag_field="type", tag="signature_delta"):
    """The signature at the end of a thought."""

    signature: str


class SaidDelta(Answer, tag_field="type", tag="text_delta"):
    """More text of a text block."""

    text: str


class InputDelta(Answer, tag_field="type", tag="input_json_delta"):
    """More text of a call's arguments."""

    partial_json: str


class BlockDelta(Answer, tag_field="type", tag="content_block_delta"):
    """Stream event: more content of a block."""

    index: int
    delta: ThinkingDelta | SignatureDelta | SaidDelta | InputDelta


class BlockStop(Answer, tag_field="type", tag="content_block_stop"):
    """Stream event: a content block is complete."""

    index: int


class MessageEnd(Answer):
    """The reason why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Answer, tag_field="type", tag="message_delta"):
    """Stream event: the message is complete, with its usage."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Answer, tag_field="type", tag="message_stop"):
    """Stream event: the stream ends."""


MessageEvent: TypeAlias = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | AnthropicError
)
