"""Answers of the routes of responses, described for /openapi.json; `response.py` and `events.py` build them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.openai.answers import ChatToken, ReasoningTokens
from mysglang.srt.entrypoints.openapi import Answer

InputItem: TypeAlias = dict[str, Any]
"""A message, a thought, a call, or the result of a call, as it was sent or answered."""

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputTextPart(Answer, tag_field="type", tag="output_text"):
    """The text of a message. There are never annotations; log-probabilities are present if requested."""

    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ChatToken]


class ReasoningTextPart(Answer, tag_field="type", tag="reasoning_text"):
    """The text of a thought."""

    text: str


class MessageItem(Answer, tag_field="type", tag="message"):
    """An output item: a message of the model."""

    id: str
    role: Literal["assistant"]
    content: list[OutputTextPart]
    status: ItemStatus


class ReasoningItem(Answer, tag_field="type", tag="reasoning"):
    """An output item: a thought of the model; there is no summary."""

    id: str
    summary: list[dict[str, Any]]
    content: list[ReasoningTextPart]
    status: ItemStatus
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Answer, tag_field="type", tag="function_call"):
    """An output item: a tool call."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem
Part: TypeAlias = OutputTextPart | ReasoningTextPart


class ResponseError(Answer):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Answer):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseReasoning(Answer):
    """The effort that the request asked for."""

    effort: str | None
    summary: None


class ResponseText(Answer):
    """The format that the text of the answer must have."""

    format: dict[str, Any]


class InputTokensDetails(Answer):
    """Tokens of a prompt. Writing to the cache is not counted, because all tokens are written."""

    cached_tokens: int
    cache_write_tokens: int


class InputTokenCount(Answer):
    """Answer to POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseUsage(Answer):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseObject(Answer):
    """A response in its present state."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str] | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoning
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: ResponseText
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class DeletedResponse(Answer):
    """Answer to DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: bool


class ItemPage(Answer):
    """Answer to GET /v1/responses/{response_id}/input_items."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Event(Answer, tag_field="type"):
    """An event of a stream. The events of one stream are numbered from 0."""

    sequence_number: int


class _ItemEvent(_Event):
    item_id: str
    output_index: int


class ResponseCreated(_Event, tag="response.created"):
    """Stream event: the first one of every response."""

    response: ResponseObject


class ResponseInProgress(_Event, tag="response.in_progress"):
    """Stream event: the second one of every response."""

    response: ResponseObject


class OutputItemAdded(_Event, tag="response.output_item.added"):
    """Stream event: an output item begins."""

    output_index: int
    item: OutputItem


class ContentPartAdded(_ItemEvent, tag="response.content_part.added"):
    """Stream event: the content of an output item begins."""

    content_index: int
    part: Part


class TextDelta(_ItemEvent, tag="response.output_text.delta"):
    """Stream event: more text of a message."""

    content_index: int
    delta: str
    logprobs: list[ChatToken]


class ReasoningDelta(_ItemEvent, tag="response.reasoning_text.delta"):
    """Stream event: more text of a thought."""

    content_index: int
    delta: str


class ArgumentsDelta(_ItemEvent, tag="response.function_call_arguments.delta"):
    """Stream event: more text of a call's arguments."""

    delta: str


class TextDone(_ItemEvent, tag="response.output_text.done"):
    """Stream event: the complete text of a message."""

    content_index: int
    text: str
    logprobs: list[ChatToken]


class ReasoningDone(_ItemEvent, tag="response.reasoning_text.done"):
    """Stream event: the complete text of a thought."""

    content_index: int
    text: str


class ArgumentsDone(_ItemEvent, tag="response.function_call_arguments.done"):
    """Stream event: the complete arguments of a call."""

    name: str
    arguments: str


class ContentPartDone(_ItemEvent, tag="response.content_part.done"):
    """Stream event: the content of an output item is complete."""

    content_index: int
    part: Part


class OutputItemDone(_Event, tag="response.output_item.done"):
    """Stream event: an output item is complete."""

    output_index: int
    item: OutputItem


class ResponseCompleted(_Event, tag="response.completed"):
    """Stream event: the response is complete. It is the last one."""

    response: ResponseObject


class ResponseIncomplete(_Event, tag="response.incomplete"):
    """Stream event: the response was cut off. It is the last one."""

    response: ResponseObject


class ResponseFailed(_Event, tag="response.failed"):
    """Stream event: the response failed. It is the last one."""

    response: ResponseObject


ResponseEvent: TypeAlias = (
    ResponseCreated
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | TextDone
    | ReasoningDone
    | ArgumentsDone
    | ContentPartDone
    | OutputItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
)
