"""The other dialects of chat, each over the one path of chat: their routes, bodies and shapes of errors."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.anthropic.answers import AnthropicMessage, InputTokens, MessageEvent
from mysglang.srt.entrypoints.anthropic.errors import AnthropicShape
from mysglang.srt.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from mysglang.srt.entrypoints.anthropic.serving import AnthropicServing
from mysglang.srt.entrypoints.error_responses import OPENAI_SHAPE, ErrorShape
from mysglang.srt.entrypoints.ollama.model_card import ModelCard
from mysglang.srt.entrypoints.ollama.serving import OllamaServing
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.responses.serving import OpenAIServingResponses
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.routes import ollama, responses

BODIES = (*responses.BODIES, MessagesRequest, CountTokensRequest, *ollama.BODIES)
SHAPES: Mapping[str, ErrorShape] = {"/v1/messages": AnthropicShape(), **ollama.SHAPES, "/v1": OPENAI_SHAPE}
"""Prefix of a path -> form of its errors. The first match is used: Anthropic's paths begin with /v1 too."""


def dialects_router(
    answers: ChatAnswers, models: OpenAIServingModels, options: ServingOptions, card: ModelCard, num_keys: int
) -> APIRouter:
    """Builds the routes of the other dialects. `num_keys`: how many API keys share what is kept."""
    router = APIRouter()
    cached = options.report_cached_tokens
    serving = OpenAIServingResponses(answers, models, report_cached_tokens=cached, num_keys=num_keys)
    router.routes.extend(responses.responses_router(serving).routes)
    messages = AnthropicServing(answers, models, report_cached_tokens=cached)
    router.routes.extend(_anthropic_router(messages).routes)
    router.routes.extend(ollama.ollama_router(OllamaServing(answers, card), card).routes)
    return router


def _anthropic_router(serving: AnthropicServing) -> APIRouter:
    """Builds the routes under /v1/messages, as Anthropic's clients know them."""
    router = APIRouter(tags=["anthropic"])

    @router.post("/v1/messages", openapi_extra=takes(MessagesRequest) | gives(AnthropicMessage, stream=(MessageEvent,)))
    async def messages(request: Request) -> Response:
        """Generate the assistant's next message; with `stream`, as server-sent events."""
        return await serving.messages(request)

    @router.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensRequest) | gives(InputTokens))
    async def count_tokens(request: Request) -> Response:
        """Count the tokens of such a message's prompt."""
        return await serving.count_tokens(request)

    return router
