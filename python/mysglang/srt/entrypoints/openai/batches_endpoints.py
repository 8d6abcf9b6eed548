"""What batches may ask: the paths whose routes answer in one piece, and what answers there."""

from __future__ import annotations

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.batches_service import BatchEndpoints
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from mysglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from mysglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels


def batch_endpoints(
    front: Front,
    models: OpenAIServingModels,
    options: ServingOptions,
    answers: ChatAnswers,
    pooling: PoolingConfig | None,
) -> BatchEndpoints:
    """`pooling`: None for a model that generates."""
    if pooling is not None:
        embedding = OpenAIServingEmbedding(front, models, pooling)
        return BatchEndpoints(models.name, {"/v1/embeddings": embedding.answer})
    chat = OpenAIServingChat(front, models, options, answers)
    completion = OpenAIServingCompletion(front, models, options)
    return BatchEndpoints(models.name, {"/v1/chat/completions": chat.answer, "/v1/completions": completion.answer})
