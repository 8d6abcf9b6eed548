"""Answers of the routes that make vectors, labels and scores, described for /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from mysglang.srt.entrypoints.openapi import Answer


class PromptUsage(Answer):
    """Tokens of all prompts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0] | UnsetType = UNSET


class VectorMeta(Answer):
    """Facts about how a vector was computed."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    cached_tokens: int
    num_retractions: int
    weight_version: str
    e2e_latency: float


class Vector(Answer):
    """Answer to POST /encode and /classify: a vector, or a classifier's scores."""

    embedding: list[float]
    meta_info: VectorMeta


class Embedding(Answer):
    """The vector of one prompt; little-endian float32 in base64, if the client asked for it."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class EmbeddingList(Answer):
    """Answer to POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class Label(Answer):
    """The likeliest label of one prompt."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Labels(Answer):
    """Answer to POST /v1/classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Label]
    usage: PromptUsage


class RankedDocument(Answer):
    """Answer to POST /v1/rerank: a document and how relevant it is."""

    score: float
    index: int
    document: str | None
    meta_info: dict[str, Any]


class DocumentText(Answer):
    """A document."""

    text: str


class RerankResult(Answer):
    """A document and how relevant it is."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class RerankResults(Answer):
    """Answer to POST /v2/rerank."""

    id: str
    model: str
    results: list[RerankResult]


class Scores(Answer):
    """Answer to POST /v1/score: for each item, the scores of the labels."""

    object: Literal["scoring"]
    scores: list[list[float]]
    model: str
    usage: PromptUsage
