"""/v1/classify, /v1/rerank, /v2/rerank and /v1/score: what a model thinks of prompts, as numbers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from mysglang.srt.configs.pooling_config import Likelihood, PoolingConfig
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.field_names import own_words
from mysglang.srt.entrypoints.openai.pooling_protocol import (
    ClassifyRequest,
    CohereRerankRequest,
    RerankRequest,
    ScoringRequest,
)
from mysglang.srt.entrypoints.openai.serving_embedding import INPUT_NAMES, request_for, usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.managers.pooled import pooled, require
from mysglang.srt.managers.ranking import Ranked, rerank, score, sigmoid, softmax
from mysglang.srt.managers.request_state import Floats

RERANK_NAMES = {"text": "documents", "input_ids": "documents"}
SCORE_NAMES = {"text": "items", "input_ids": "items", "token_ids_logprob": "label_token_ids"}


class OpenAIServingRanking:
    """Answers the four routes that classify, score and rank."""

    def __init__(self, front: Front, models: OpenAIServingModels, pooling: PoolingConfig | None) -> None:
        """`pooling`: None for a generating model, which can only score."""
        self._manager = front.tokenizer_manager
        self._models = models
        self._pooling = pooling

    async def classify(self, request: Request) -> Response:
        """Returns the most likely label of each prompt, and the probabilities of all."""
        body = await self._models.read(request, ClassifyRequest)
        return json_response(await while_connected(request, self._classified(body)))

    async def rerank(self, request: Request) -> Response:
        """Returns the documents, the most relevant first, as SGLang answers: a plain list."""
        body = await self._models.read(request, RerankRequest)
        ranked = await while_connected(request, self._ranked(body))
        return json_response([one.response(body.documents, with_text=body.return_documents) for one in ranked])

    async def cohere_rerank(self, request: Request) -> Response:
        """Returns the answer in the form of Cohere and Jina: an object with `results`."""
        body = await self._models.read(request, CohereRerankRequest)
        ranked = await while_connected(request, self._ranked(body))
        results = [
            {
                "index": one.index,
                "relevance_score": one.score,
                **({"document": {"text": body.documents[one.index]}} if body.return_documents else {}),
            }
            for one in ranked
        ]
        return json_response({"id": f"rerank-{uuid.uuid4().hex}", "model": self._models.name, "results": results})

    async def score(self, request: Request) -> Response:
        """Returns how likely each label is as the next token of query and item, or a classifier's scores of them."""
        body = await self._models.read(request, ScoringRequest)
        return json_response(await while_connected(request, self._scored(body)))

    async def _classified(self, body: ClassifyRequest) -> dict[str, object]:
        config = require(self._pooling, "classify")
        with own_words(INPUT_NAMES):
            answers = await pooled(self._manager.generate_request, request_for(body, body.input), config)
        return {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": self._models.name,
            "data": [
                _label(index, probabilities(one.vector, config.likelihood), config) for index, one in enumerate(answers)
            ],
            "usage": usage(answers),
        }

    async def _ranked(self, body: RerankRequest) -> list[Ranked]:
        with own_words(RERANK_NAMES):
            ranked = await rerank(self._manager, self._pooling, body.query, body.documents)
        return ranked[: body.top_n]

    async def _scored(self, body: ScoringRequest) -> dict[str, object]:
        with own_words(SCORE_NAMES):
            found = await score(
                self._manager,
                self._pooling,
                body.prompts(),
                body.label_token_ids,
                apply_softmax=body.apply_softmax,
            )
        return {
            "object": "scoring",
            "scores": found.rows,
            "model": self._models.name,
            "usage": {
                "prompt_tokens": found.prompt_tokens,
                "total_tokens": found.prompt_tokens,
                "completion_tokens": 0,
            },
        }


LIKELIHOODS: dict[Likelihood, Callable[[Floats], Floats]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "identity": lambda scores: scores,
}


def probabilities(scores: Floats, likelihood: Likelihood) -> Floats:
    """Returns the probabilities of a classifier's labels; the scores themselves where it estimates numbers."""
    return LIKELIHOODS[likelihood](scores)


def _label(index: int, probs: Floats, config: PoolingConfig) -> dict[str, object]:
    return {
        "index": index,
        "label": config.labels[int(probs.argmax())],
        "probs": probs.tolist(),
        "num_classes": len(probs),
    }
