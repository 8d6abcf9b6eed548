"""The other dialects of chat, each over the one path of chat: their routes, bodies and shapes of errors."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from mysglang.srt.entrypoints.anthropic.serving import AnthropicServing
from mysglang.srt.entrypoints.error_responses import OPENAI_SHAPE, ErrorShape
from mysglang.srt.entrypoints.ollama.model_card import ModelCard
from mysglang.srt.entrypoints.ollama.serving import OllamaServing
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.responses.serving import OpenAIServingResponses
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.routes import anthropic, ollama, responses

BODIES = (*responses.BODIES, *anthropic.BODIES, *ollama.BODIES)
SHAPES: Mapping[str, ErrorShape] = {**anthropic.SHAPES, **ollama.SHAPES, "/v1": OPENAI_SHAPE}
"""Prefix of a path -> form of its errors. The first match is used: Anthropic's paths begin with /v1 too."""


def dialects_router(
    answers: ChatAnswers, models: OpenAIServingModels, options: ServingOptions, card: ModelCard, num_keys: int
) -> APIRouter:
    """`num_keys`: API keys that share what is kept."""
    router = APIRouter()
    cached = options.report_cached_tokens
    serving = OpenAIServingResponses(answers, models, report_cached_tokens=cached, num_keys=num_keys)
    router.routes.extend(responses.responses_router(serving).routes)
    messages = AnthropicServing(answers, models, report_cached_tokens=cached)
    router.routes.extend(anthropic.anthropic_router(messages).routes)
    router.routes.extend(ollama.ollama_router(OllamaServing(answers, card), card).routes)
    return router
