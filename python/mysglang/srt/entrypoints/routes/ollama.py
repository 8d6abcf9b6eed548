"""/api/*, as Ollama's clients know it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.ollama.answers import (
    OllamaChat,
    OllamaGenerated,
    OllamaModel,
    OllamaProcesses,
    OllamaTags,
    OllamaVector,
    OllamaVectors,
    OllamaVersion,
)
from mysglang.srt.entrypoints.ollama.embedding import OllamaServingEmbedding
from mysglang.srt.entrypoints.ollama.errors import OllamaError, OllamaShape
from mysglang.srt.entrypoints.ollama.model_card import ModelCard
from mysglang.srt.entrypoints.ollama.protocol import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from mysglang.srt.entrypoints.ollama.serving import OllamaServing
from mysglang.srt.entrypoints.openapi import LINES, gives, takes
from mysglang.srt.utils.version import __version__

BODIES = (OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest)
EMBEDDING_BODIES = (OllamaEmbedRequest, OllamaEmbeddingsRequest)
SHAPES = {"/api": OllamaShape()}

CHAT = takes(OllamaChatRequest) | gives(OllamaChat, stream=(OllamaChat, OllamaError), stream_type=LINES)
GENERATE = takes(OllamaGenerateRequest) | gives(
    OllamaGenerated, stream=(OllamaGenerated, OllamaError), stream_type=LINES
)


def ollama_router(serving: OllamaServing, card: ModelCard) -> APIRouter:
    router = APIRouter(tags=["ollama"])

    @router.post("/api/chat", openapi_extra=CHAT)
    async def chat(request: Request) -> Response:
        """Generate the assistant's next message; as lines of JSON, unless `stream` is false."""
        return await serving.chat(request)

    @router.post("/api/generate", openapi_extra=GENERATE)
    async def generate(request: Request) -> Response:
        """Generate the answer to a prompt; as lines of JSON, unless `stream` is false."""
        return await serving.generate(request)

    @router.get("/api/tags", openapi_extra=gives(OllamaTags))
    async def tags() -> Response:
        """List the served model, as Ollama lists its local models."""
        return json_response({"models": [card.tag()]})

    @router.get("/api/ps", openapi_extra=gives(OllamaProcesses))
    async def processes() -> Response:
        """List the served model, which is always loaded, and the memory that it takes."""
        return json_response({"models": [card.running()]})

    @router.post("/api/show", openapi_extra=takes(OllamaShowRequest) | gives(OllamaModel))
    async def show(request: Request) -> Response:
        """Return the description of the served model."""
        body = await read_model(request, OllamaShowRequest)
        card.check(body.model)
        return json_response(card.show())

    @router.get("/api/version", openapi_extra=gives(OllamaVersion))
    async def version() -> Response:
        """Return the version of this server, not of Ollama."""
        return json_response({"version": __version__})

    return router


def ollama_embedding_router(serving: OllamaServingEmbedding) -> APIRouter:
    router = APIRouter(tags=["ollama"])

    @router.post("/api/embed", openapi_extra=takes(OllamaEmbedRequest) | gives(OllamaVectors))
    async def embed(request: Request) -> Response:
        """Compute a vector for each text."""
        return await serving.embed(request)

    @router.post("/api/embeddings", openapi_extra=takes(OllamaEmbeddingsRequest) | gives(OllamaVector))
    async def embeddings(request: Request) -> Response:
        """Compute the vector of a prompt, in Ollama's older form."""
        return await serving.embeddings(request)

    return router
