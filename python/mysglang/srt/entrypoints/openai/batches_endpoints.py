"""Endpoints that batches may use: the paths whose routes answer in one piece, and the objects that answer."""

from __future__ import annotations

from functools import partial

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.batches_service import BatchEndpoints
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from mysglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from mysglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.messages.generate import FieldReport


def batch_endpoints(
    front: Front,
    models: OpenAIServingModels,
    options: ServingOptions,
    answers: ChatAnswers,
    pooling: PoolingConfig | None,
    fields: FieldReport,
) -> BatchEndpoints:
    """`pooling`: None for a model that generates. `fields`: hears of the lines' fields that change nothing."""
    if pooling is not None:
        embedding = OpenAIServingEmbedding(front, models, pooling)
        return BatchEndpoints(models.name, {"/v1/embeddings": partial(embedding.answer, fields=fields)}, fields)
    chat = OpenAIServingChat(front, models, options, answers)
    completion = OpenAIServingCompletion(front, models, options)
    answers_by_path = {
        "/v1/chat/completions": partial(chat.answer, fields=fields),
        "/v1/completions": partial(completion.answer, fields=fields),
    }
    return BatchEndpoints(models.name, answers_by_path, fields)
