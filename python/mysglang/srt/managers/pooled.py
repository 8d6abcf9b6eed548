"""Pooled answers: what came of requests that end after their prompt, and what may still be done with a vector.

Vectors come whole; here they are cut to fewer dimensions where the model was trained for it. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from mysglang.srt.configs.architectures import Task
from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.errors import Aborted, InvalidRequest
from mysglang.srt.managers.request_state import Floats, GenerationChunk
from mysglang.srt.managers.response_dict import finish_reason_dict
from mysglang.srt.managers.tokenizer_manager import NO_VECTORS
from mysglang.srt.messages.embedding import EmbeddingReqInput
from mysglang.srt.messages.generate import GenerateReqInput

Generate = Callable[[GenerateReqInput], AsyncGenerator[GenerationChunk, None]]
"""`TokenizerManager.generate_request`."""

INSTEAD = {
    "generate": NO_VECTORS,
    "embed": "The served model makes vectors and scores nothing; ask /v1/embeddings.",
    "classify": "The served model scores prompts and makes no vectors; ask /v1/classify.",
}
"""Kind of model -> advice for a client that asks for something else."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The vector of one prompt, and the chunk that brought it."""

    chunk: GenerationChunk
    vector: Floats
    """[width], or what it was cut to."""
    seconds: float
    """Seconds from the request to the answer."""

    def response(self) -> dict[str, Any]:
        """Returns the answer in the form of /encode, /classify and Engine."""
        chunk = self.chunk
        return {
            "embedding": self.vector.tolist(),
            "meta_info": {
                "id": chunk.rid,
                "finish_reason": finish_reason_dict(chunk.finish_reason),
                "prompt_tokens": chunk.prompt_tokens,
                "cached_tokens": chunk.cached_tokens,
                "num_retractions": chunk.retractions,
                "weight_version": chunk.weight_versions[-1][0],
                "e2e_latency": self.seconds,
            },
        }


async def pooled(
    generate: Generate, request: GenerateReqInput, config: PoolingConfig | None, dimensions: int | None = None
) -> list[Pooled]:
    """Returns the answers to all prompts of `request`, in order. Cancelling it closes the request.

    Raises InvalidRequest, also for `dimensions` that the model does not have, and what `generate` raises.
    """
    begun = time.monotonic()
    check_dimensions(config, dimensions)
    found: dict[int, Pooled] = {}
    async with aclosing(generate(request)) as chunks:
        async for chunk in chunks:
            if chunk.vector is None:
                raise Aborted("The request was aborted before its vector was there.", status=503)
            whole = chunk.vector
            vector = whole if dimensions is None or config is None else cut(whole, dimensions, config.normalize)
            found[chunk.index] = Pooled(chunk, vector, time.monotonic() - begun)
    return [found[index] for index in sorted(found)]


async def embeddings(generate: Generate, obj: EmbeddingReqInput, config: PoolingConfig | None) -> Any:
    """Returns the native response {embedding, meta_info}; a list of them for a batch."""
    answers = [answer.response() for answer in await pooled(generate, obj.request(), config, obj.dimensions)]
    return answers if obj.several else answers[0]


def require(config: PoolingConfig | None, task: Task) -> PoolingConfig:
    """Returns the config of a model that does `task`. Raises InvalidRequest for any other."""
    if config is None or config.task != task:
        raise InvalidRequest(INSTEAD["generate" if config is None else config.task])
    return config


def check_dimensions(config: PoolingConfig | None, dimensions: int | None) -> None:
    """Raises InvalidRequest for a length to which the model's vectors may not be cut."""
    if dimensions is None or config is None:
        return
    if config.task != "embed" or config.dimensions is None:
        raise InvalidRequest(
            "dimensions: the served model was not trained for shorter vectors. If it was, say so with "
            "--json-model-override-args '{\"is_matryoshka\": true}'.",
            param="dimensions",
        )
    if config.dimensions and dimensions not in config.dimensions:
        known = ", ".join(map(str, config.dimensions))
        raise InvalidRequest(f"dimensions must be one of {known}, not {dimensions}.", param="dimensions")
    if not 1 <= dimensions <= config.width:
        raise InvalidRequest(f"dimensions must be between 1 and {config.width}, not {dimensions}.", param="dimensions")


def cut(vector: Floats, dimensions: int, normalize: bool) -> Floats:
    """Returns the first `dimensions` numbers, of length 1 again if they should be.

    Kusupati et al., "Matryoshka Representation Learning" (2022).
    """
    short = vector[:dimensions]
    length = float(np.linalg.norm(short))
    return (short / length).astype(np.float32) if normalize and length > 0 else short
