"""Answers of the OpenAI routes that generate, described for /openapi.json.

Built are plain dicts, where they are made (`serving_chat.py`, `serving_completions.py` and their neighbours).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.openapi import Answer

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class CachedTokens(Answer):
    """The number of tokens of a prompt that were cached."""

    cached_tokens: int


class ReasoningTokens(Answer):
    """The number of tokens of an answer that belong to its thoughts."""

    reasoning_tokens: int


class Usage(Answer):
    """The tokens of a request. `prompt_tokens_details` is present if the server was asked to report it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET


class AnswerMetadata(Answer):
    """The server's description of the answer."""

    weight_version: str


class FunctionText(Answer):
    """The function of a tool call; in a stream, a piece of its arguments."""

    name: str | None
    arguments: str


class AnsweredCall(Answer):
    """A call of a tool. In a stream the first piece of a call has its id and name."""

    id: str | None
    index: int
    type: Literal["function"]
    function: FunctionText


class AssistantMessage(Answer):
    """The model's message: text, thoughts and tool calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None
    tool_calls: list[AnsweredCall] | None


class Delta(Answer):
    """New content of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[AnsweredCall] | UnsetType = UNSET
    hidden_states: list[float] | UnsetType = UNSET
    """Last hidden state of the last token, if the request asked for it; in a frame of its own, after the others."""


class LikelyToken(Answer):
    """A token and its log-probability."""

    token: str
    bytes: list[int]
    logprob: float | None


class ChatToken(LikelyToken):
    """A token of an answer, and the likeliest ones in its place."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(Answer):
    """Log-probabilities of each token of a message."""

    content: list[ChatToken]
    refusal: None


class ChatChoice(Answer):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    matched_stop: int | str | None
    hidden_states: list[float] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(Answer):
    """New content of one of `n` answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    matched_stop: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer):
    """Answer to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metadata: AnswerMetadata


class ChatCompletionChunk(Answer):
    """A frame of the stream of POST /v1/chat/completions. The last one has usage and no choice, if the client asked for
    usage.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionLogprobColumns(Answer):
    """Log-probabilities of each token, column by column."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float | None] | None]


class CompletionChoice(Answer):
    """One of `n` answers to one of the prompts; in a stream, what is new in it."""

    index: int
    text: str
    logprobs: CompletionLogprobColumns | None
    finish_reason: FinishReason | None
    matched_stop: int | str | None
    hidden_states: list[float] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Answer):
    """Answer to POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metadata: AnswerMetadata


class CompletionChunk(Answer):
    """A frame of the stream of POST /v1/completions. The last one has usage and no choice, if the client asked for
    usage.
    """

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Tokens(Answer):
    """Answer to POST /tokenize."""

    tokens: list[int | list[int]]
    count: int | list[int]
    max_model_len: int


class Text(Answer):
    """Answer to POST /detokenize."""

    text: str | list[str]


class ModelCard(Answer):
    """The served model, under one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(Answer):
    """Answer to GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]
