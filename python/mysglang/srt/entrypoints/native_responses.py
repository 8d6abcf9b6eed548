"""The native responses of one call, chunk by chunk or at its end: what /generate and Engine have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Protocol

from mysglang.srt.entrypoints.json_pieces import in_pieces
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.response_dict import Answer, Response, ResponseDicts
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.messages.generate import GenerateReqInput


class Generates(Protocol):
    """A manager that answers generation requests."""

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]: ...


async def responses(manager: Generates, obj: GenerateReqInput, dicts: ResponseDicts) -> AsyncGenerator[Response, None]:
    """Yields a response for each chunk. Closing the iterator ends the request."""
    async with aclosing(manager.generate_request(obj)) as chunks:
        async for chunk in chunks:
            yield dicts.add(chunk)


async def answer(manager: Generates, obj: GenerateReqInput, dicts: ResponseDicts) -> Answer:
    """Returns the last response, or the last responses of all answers. Cancelling it ends the request."""
    async with aclosing(manager.generate_request(obj)) as chunks:
        async for chunk in chunks:
            dicts.add(chunk)
    return dicts.answer()


async def written_answer(
    manager: Generates, obj: GenerateReqInput, dicts: ResponseDicts, pool: TextPool
) -> list[bytes]:
    """Returns the answer as JSON, in parts. Other work can run between the parts, however long the answer is."""
    written: dict[int, bytes] = {}
    async with aclosing(manager.generate_request(obj)) as chunks:
        async for chunk in chunks:
            written[chunk.index] = await pool.run_if_many(chunk.numbers, partial(_written, dicts, chunk))
    if not dicts.several:
        return [written[0]]
    parts = [part for index in sorted(written) for part in (b",", written[index])]
    return [b"[", *parts[1:], b"]"]


def _written(dicts: ResponseDicts, chunk: GenerationChunk) -> bytes:
    return in_pieces(dicts.whole(chunk))
