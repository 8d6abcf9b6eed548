"""/v1/embeddings: a vector for each prompt."""

from __future__ import annotations

import base64

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.openai.pooling_protocol import EmbeddingRequest, PoolingRequest
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.managers.pooled import Pooled, pooled, require
from mysglang.srt.messages.embedding import NOTHING_NEW
from mysglang.srt.messages.generate import REFUSED, FieldReport, GenerateReqInput

INPUT_NAMES = {"text": "input", "input_ids": "input"}


class OpenAIServingEmbedding:
    """Answers POST /v1/embeddings."""

    def __init__(self, front: Front, models: OpenAIServingModels, pooling: PoolingConfig | None) -> None:
        """`pooling`: None for a generating model, for which requests are refused."""
        self._front = front
        self._models = models
        self._pooling = pooling

    async def handle(self, request: Request) -> Response:
        """Returns the answer to `request`. Raises what `error_responses` knows."""
        body = await self._models.read(request, EmbeddingRequest)
        return json_response(await while_connected(request, self._answer(body)))

    async def answer(self, data: dict[str, object], fields: FieldReport = REFUSED) -> dict[str, object]:
        """Returns the answer to a body that was not sent as a request of its own."""
        body = validate(EmbeddingRequest, data, fields)
        self._models.check(body.model)
        return await self._answer(body)

    async def _answer(self, body: EmbeddingRequest) -> dict[str, object]:
        config = require(self._pooling, "embed")
        generate = self._front.tokenizer_manager.generate_request
        with own_words(INPUT_NAMES):
            answers = await pooled(generate, request_for(body, body.input), config, body.dimensions)
        as_text = body.encoding_format == "base64"
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": encoded(one) if as_text else one.vector, "index": index}
                for index, one in enumerate(answers)
            ],
            "model": self._models.name,
            "usage": usage(answers),
        }


def request_for(body: PoolingRequest, prompts: list[str] | list[list[int]]) -> GenerateReqInput:
    """Returns the request that computes vectors or scores of these prompts."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    ids: list[int | list[int]] = [prompt for prompt in prompts if isinstance(prompt, list)]
    return GenerateReqInput(
        text=texts or None,
        input_ids=ids or None,
        rid=body.rid,
        extra_key=body.extra_key,
        cache_salt=body.cache_salt,
        sampling_params=NOTHING_NEW,
        pool=True,
    )


def encoded(answer: Pooled) -> str:
    """Returns the vector as little-endian float32 in base64, as OpenAI's clients read it."""
    return base64.b64encode(answer.vector.astype("<f4").tobytes()).decode("ascii")


def usage(answers: list[Pooled]) -> dict[str, object]:
    """Returns the usage: tokens of all prompts."""
    tokens = sum(answer.chunk.prompt_tokens for answer in answers)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
