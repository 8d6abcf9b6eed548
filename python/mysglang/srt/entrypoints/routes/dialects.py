"""The chat of other makers' clients, each over the one path of chat: their routes, bodies and shapes of errors."""

from __future__ import annotations

from fastapi import APIRouter

from mysglang.srt.entrypoints.anthropic.serving import AnthropicServing
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.routes import anthropic

BODIES = (*anthropic.BODIES,)
SHAPES = {**anthropic.SHAPES}


def dialects_router(answers: ChatAnswers, models: OpenAIServingModels, options: ServingOptions) -> APIRouter:
    router = APIRouter()
    serving = AnthropicServing(answers, models, report_cached_tokens=options.report_cached_tokens)
    router.include_router(anthropic.anthropic_router(serving))
    return router
