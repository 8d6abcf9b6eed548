"""Numbers instead of text: SGLang's own /encode and /classify, /v1/embeddings and its neighbours. A model that
generates can only /v1/score; the other routes say so.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.body import read_as
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.ollama.embedding import OllamaServingEmbedding
from mysglang.srt.entrypoints.openai.pooling_answers import (
    EmbeddingList,
    Labels,
    RankedDocument,
    RerankResults,
    Scores,
    Vector,
)
from mysglang.srt.entrypoints.openai.pooling_protocol import (
    ClassifyRequest,
    CohereRerankRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoringRequest,
)
from mysglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.serving_ranking import OpenAIServingRanking
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.routes import ollama
from mysglang.srt.managers.pooled import embeddings
from mysglang.srt.messages.embedding import EmbeddingReqInput, parse_embedding

BODIES = (
    EmbeddingRequest,
    EmbeddingReqInput,
    ClassifyRequest,
    RerankRequest,
    CohereRerankRequest,
    ScoringRequest,
    *ollama.EMBEDDING_BODIES,
)

GENERATING = frozenset(
    {
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/chat",
        "/api/generate",
    }
)
"""Routes that need a model that generates."""


def pooling_router(front: Front, models: OpenAIServingModels, pooling: PoolingConfig | None) -> APIRouter:
    """Builds the routes of models that compute vectors or scores. `pooling`: None for a model that generates."""
    router = APIRouter(tags=["embeddings"])
    embedding = OpenAIServingEmbedding(front, models, pooling)
    ranking = OpenAIServingRanking(front, models, pooling)

    @router.put("/encode", openapi_extra=takes(EmbeddingReqInput) | gives(Vector | list[Vector]))
    @router.post("/encode", openapi_extra=takes(EmbeddingReqInput) | gives(Vector | list[Vector]))
    @router.put("/classify", openapi_extra=takes(EmbeddingReqInput) | gives(Vector | list[Vector]))
    @router.post("/classify", openapi_extra=takes(EmbeddingReqInput) | gives(Vector | list[Vector]))
    async def encode(request: Request) -> Response:
        """Compute the vector of a prompt, or of each prompt of a batch; for a model that classifies, its scores."""
        obj = await read_as(request, partial(parse_embedding, report=fields_of(request.scope)))
        generate = front.tokenizer_manager.generate_request
        return json_response(await while_connected(request, embeddings(generate, obj, pooling)))

    @router.post("/v1/embeddings", openapi_extra=takes(EmbeddingRequest) | gives(EmbeddingList))
    async def openai_embeddings(request: Request) -> Response:
        """Compute a vector for each prompt, in OpenAI's form."""
        return await embedding.handle(request)

    @router.post("/v1/classify", openapi_extra=takes(ClassifyRequest) | gives(Labels))
    async def classify(request: Request) -> Response:
        """Return the most likely label of each prompt, and the probabilities of all labels."""
        return await ranking.classify(request)

    @router.put("/v1/rerank", openapi_extra=takes(RerankRequest) | gives(list[RankedDocument]))
    @router.post("/v1/rerank", openapi_extra=takes(RerankRequest) | gives(list[RankedDocument]))
    async def rerank(request: Request) -> Response:
        """Order documents by their relevance to a query, as a list."""
        return await ranking.rerank(request)

    @router.post("/v2/rerank", openapi_extra=takes(CohereRerankRequest) | gives(RerankResults))
    async def cohere_rerank(request: Request) -> Response:
        """Order documents by their relevance, in the form of Cohere and Jina, under `results`."""
        return await ranking.cohere_rerank(request)

    @router.post("/v1/score", openapi_extra=takes(ScoringRequest) | gives(Scores))
    async def score(request: Request) -> Response:
        """Return how likely each of some tokens follows a prompt; or the scores of a classifier."""
        return await ranking.score(request)

    router.routes.extend(ollama.ollama_embedding_router(OllamaServingEmbedding(front, models, pooling)).routes)
    return router


def refusing_router(paths: frozenset[str], why: Exception) -> APIRouter:
    """Builds routes that answer every POST to `paths` with `why`. Include it before the router that would serve
    them.
    """
    router = APIRouter(include_in_schema=False)

    async def refuse() -> Response:
        raise why

    for path in sorted(paths):
        router.add_api_route(path, refuse, methods=["POST"])
    return router
