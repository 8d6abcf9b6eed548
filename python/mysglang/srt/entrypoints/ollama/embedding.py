"""/api/embed and /api/embeddings: the vectors of /v1/embeddings as Ollama's clients read them."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.ollama.model_card import check_name
from mysglang.srt.entrypoints.ollama.protocol import OllamaEmbeddingsRequest, OllamaEmbedRequest
from mysglang.srt.entrypoints.ollama.translate import check_context
from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.managers.pooled import Pooled, pooled, require
from mysglang.srt.messages.embedding import NOTHING_NEW
from mysglang.srt.messages.generate import GenerateReqInput


class OllamaServingEmbedding:
    """Answers Ollama's two embedding routes, /api/embed and /api/embeddings."""

    def __init__(self, front: Front, models: OpenAIServingModels, pooling: PoolingConfig | None) -> None:
        """`pooling`: None for a generating model, for which requests are refused."""
        self._front = front
        self._models = models
        self._pooling = pooling

    async def embed(self, request: Request) -> Response:
        """Returns the answer to `request`. Raises what `error_responses` knows."""
        begun = time.monotonic_ns()
        body = await read_model(request, OllamaEmbedRequest)
        self._check(body)
        texts = [body.input] if isinstance(body.input, str) else body.input
        answers = await while_connected(request, self._vectors(texts, "input", body.dimensions))
        return json_response(
            {
                "model": body.model,
                "embeddings": [answer.vector.tolist() for answer in answers],
                "total_duration": time.monotonic_ns() - begun,
                "load_duration": 0,
                "prompt_eval_count": sum(answer.chunk.prompt_tokens for answer in answers),
            }
        )

    async def embeddings(self, request: Request) -> Response:
        """Answer POST /api/embeddings."""
        body = await read_model(request, OllamaEmbeddingsRequest)
        self._check(body)
        (answer,) = await while_connected(request, self._vectors([body.prompt], "prompt", None))
        return json_response({"embedding": answer.vector.tolist()})

    def _check(self, body: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> None:
        check_name(self._models, body.model)
        check_context(body.options, self._models.max_model_len)

    async def _vectors(self, texts: list[str], field: str, dimensions: int | None) -> list[Pooled]:
        config = require(self._pooling, "embed")
        request = GenerateReqInput(text=texts, sampling_params=NOTHING_NEW, pool=True)
        with own_words({"text": field}):
            return await pooled(self._front.tokenizer_manager.generate_request, request, config, dimensions)
