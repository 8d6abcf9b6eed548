"""Ranking: how relevant documents are to a query, and how likely a model finds each of some answers.

Relevance comes from a cross-encoder that reads query and document at once, or from the angle between their vectors; the
likelihoods from the next-token distribution of a model that generates, or from a classifier. Knows no HTTP.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np

from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.errors import Aborted, InvalidRequest
from mysglang.srt.managers.pooled import pooled
from mysglang.srt.managers.request_state import Floats, GenerationChunk
from mysglang.srt.managers.response_dict import finish_reason_dict
from mysglang.srt.messages.embedding import NOTHING_NEW
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

NO_RANKING = (
    "The served model cannot rank documents: that takes a cross-encoder with one label, or a model that makes vectors."
)
NO_SCORES = "The served model makes vectors and scores nothing; ask /v1/embeddings or /v1/rerank."

ONE_TOKEN = SamplingParams(temperature=0.0, max_new_tokens=1, ignore_eos=True)

Texts = Sequence[str]
Ids = Sequence[Sequence[int]]


class PairCoder(Protocol):
    """The methods of `InputTokenizer` that ranking needs."""

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]: ...


class Asked(Protocol):
    """The part of `TokenizerManager` that ranking needs."""

    @property
    def input_tokenizer(self) -> PairCoder: ...

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]: ...


@dataclass(frozen=True, slots=True)
class Ranked:
    """One document with its score."""

    index: int
    """Index in the request."""
    score: float
    prompt_tokens: int
    """Read for it; with vectors, the query's are the first document's."""
    rid: str

    def response(self, documents: Texts, *, with_text: bool) -> dict[str, Any]:
        """Returns the result in SGLang's form."""
        return {
            "score": self.score,
            "document": documents[self.index] if with_text else None,
            "index": self.index,
            "meta_info": {"id": self.rid, "prompt_tokens": self.prompt_tokens},
        }


@dataclass(frozen=True, slots=True)
class Scores:
    """Results of `score`."""

    rows: list[list[float]]
    """For each item, a number for each label."""
    prompt_tokens: int


async def rerank(manager: Asked, config: PoolingConfig | None, query: str, documents: Texts) -> list[Ranked]:
    """Returns all documents, the most relevant first; equals keep their order.

    Raises InvalidRequest, also for a model that cannot do it, and what the manager raises.
    """
    if config is None or not (config.task == "embed" or (config.pairs and config.width == 1)):
        raise InvalidRequest(NO_RANKING)
    rank = _by_angle if config.task == "embed" else _by_pairs
    try:
        found = await rank(manager, config, query, documents)
    except InvalidRequest:
        await _check_query(manager, query)
        raise
    return sorted(found, key=lambda one: one.score, reverse=True)


async def _check_query(manager: Asked, query: str) -> None:
    """Raises InvalidRequest that names the query if it cannot be a prompt by itself: then no document is to blame."""
    request = GenerateReqInput(text=query, sampling_params=NOTHING_NEW, pool=True)
    try:
        await pooled(manager.generate_request, request, None)
    except InvalidRequest as error:
        raise error.reworded(f"query: {re.sub(r'^text ', '', error.message)}", "query") from None


async def _by_pairs(manager: Asked, config: PoolingConfig, query: str, documents: Texts) -> list[Ranked]:
    coded = await manager.input_tokenizer.encode_pairs([(query, document) for document in documents])
    request = GenerateReqInput(
        input_ids=[ids for ids, _ in coded],
        second_texts=[second for _, second in coded],
        sampling_params=NOTHING_NEW,
        pool=True,
    )
    answers = await pooled(manager.generate_request, request, config)
    scores = np.array([answer.vector[0] for answer in answers], dtype=np.float64)
    if config.activation == "sigmoid":
        scores = sigmoid(scores)
    return [
        Ranked(index, score, answer.chunk.prompt_tokens, answer.chunk.rid)
        for index, (score, answer) in enumerate(zip(scores.tolist(), answers, strict=True))
    ]


async def _by_angle(manager: Asked, config: PoolingConfig, query: str, documents: Texts) -> list[Ranked]:
    request = GenerateReqInput(text=[query, *documents], sampling_params=NOTHING_NEW, pool=True)
    asked, *answers = await pooled(manager.generate_request, request, config)
    vectors = np.stack([answer.vector for answer in answers]).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked.vector)
    cosines = (vectors @ asked.vector) / np.maximum(lengths, np.finfo(np.float64).tiny)
    scores = cosines.clip(-1.0, 1.0)  # rounding may lead beyond what a cosine can be
    ranked = [
        Ranked(index, score, answer.chunk.prompt_tokens, answer.chunk.rid)
        for index, (score, answer) in enumerate(zip(scores.tolist(), answers, strict=True))
    ]
    first = ranked[0]
    return [replace(first, prompt_tokens=first.prompt_tokens + asked.chunk.prompt_tokens), *ranked[1:]]


async def score(
    manager: Asked,
    config: PoolingConfig | None,
    prompts: Texts | Ids,
    label_token_ids: Sequence[int],
    *,
    apply_softmax: bool,
) -> Scores:
    """Returns, for each prompt, the probability that each label is its next token, by softmax among the labels alone.

    For a classifier, which has labels of its own, the result is its scores. Raises InvalidRequest and what the manager
    raises.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    request = GenerateReqInput(
        text=texts or None,
        input_ids=[list(prompt) for prompt in prompts if not isinstance(prompt, str)] or None,
    )
    if config is None:
        return await _by_next_token(manager, request, label_token_ids, apply_softmax=apply_softmax)
    if config.task != "classify":
        raise InvalidRequest(NO_SCORES)
    if label_token_ids:
        raise InvalidRequest(
            "label_token_ids: the served model is a classifier and has labels of its own.", param="label_token_ids"
        )
    asked = msgspec.structs.replace(request, sampling_params=NOTHING_NEW, pool=True)
    answers = await pooled(manager.generate_request, asked, config)
    rows = np.stack([answer.vector for answer in answers])
    rows = softmax(rows) if apply_softmax else rows
    return Scores(rows.tolist(), sum(answer.chunk.prompt_tokens for answer in answers))


async def _by_next_token(
    manager: Asked, request: GenerateReqInput, label_token_ids: Sequence[int], *, apply_softmax: bool
) -> Scores:
    if not label_token_ids:
        raise InvalidRequest("label_token_ids must name at least one token.", param="label_token_ids")
    asked = msgspec.structs.replace(
        request, sampling_params=ONE_TOKEN, return_logprob=True, token_ids_logprob=list(label_token_ids)
    )
    rows: dict[int, Floats] = {}
    tokens = 0
    async with aclosing(manager.generate_request(asked)) as chunks:
        async for chunk in chunks:
            if chunk.logprobs is None or not len(chunk.logprobs.output.token_ids_vals):
                why = finish_reason_dict(chunk.finish_reason) or {}
                raise Aborted(f"The request ended before it was scored: {why.get('message')}", status=503)
            rows[chunk.index] = chunk.logprobs.output.token_ids_vals[0]
            tokens += chunk.prompt_tokens
    logprobs = np.stack([rows[index] for index in sorted(rows)])
    found = softmax(logprobs) if apply_softmax else np.exp(logprobs)
    return Scores(found.tolist(), tokens)


def softmax(rows: Floats) -> Floats:
    """Computes softmax over the last dimension."""
    shifted = np.exp(rows - rows.max(axis=-1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return result


def sigmoid(values: Any) -> Any:
    """Computes 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * values))
