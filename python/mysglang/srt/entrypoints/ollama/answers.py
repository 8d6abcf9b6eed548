"""Answers of Ollama's routes, described for /openapi.json; `serving.py` and `model_card.py` build them. Durations are
nanoseconds.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.openai.answers import ChatToken
from mysglang.srt.entrypoints.openapi import Answer


class OllamaCalledFunction(Answer):
    """The function of a tool call, with its arguments."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    """A call of a tool."""

    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(Answer):
    """The model's message."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class _OllamaAnswer(Answer):
    """An answer, or a line of its stream. Counts and durations are in the last line."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[ChatToken] | UnsetType = UNSET


class OllamaChat(_OllamaAnswer, kw_only=True):
    """Answer to POST /api/chat."""

    message: OllamaAnswerMessage


class OllamaGenerated(_OllamaAnswer, kw_only=True):
    """Answer to POST /api/generate, or a line of its stream."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaDetails(Answer):
    """Properties of the model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaTag(Answer):
    """Description of the served model in lists."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(Answer):
    """Answer to GET /api/tags."""

    models: list[OllamaTag]


class OllamaRunning(OllamaTag):
    """Description of the served model, with the memory that it takes."""

    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(Answer):
    """Answer to GET /api/ps."""

    models: list[OllamaRunning]


class OllamaModel(Answer):
    """Answer to POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]


class OllamaVersion(Answer):
    """Answer to GET /api/version."""

    version: str


class OllamaVectors(Answer):
    """Answer to POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(Answer):
    """Answer to POST /api/embeddings."""

    embedding: list[float]
