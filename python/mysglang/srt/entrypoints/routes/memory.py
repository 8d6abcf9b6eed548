"""Routes that give the engine's memory back to the machine and take it again, and one that makes it slower. Closed
unless there is an admin key, POST only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_optional
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import Done
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.entrypoints.weight_commands import PATIENCE_S
from mysglang.srt.messages.control import Command
from mysglang.srt.messages.weights import (
    MEMORY_TAGS,
    MemoryTag,
    ReleaseMemoryOccupationReq,
    ResumeMemoryOccupationReq,
    SlowDownReq,
)

Tags = Annotated[list[MemoryTag], Field(min_length=1)]


class ReleaseMemoryOccupationReqInput(StrictModel):
    """Body of POST /release_memory_occupation. Without tags, all memory is released."""

    tags: Tags = list(MEMORY_TAGS)


class ResumeMemoryOccupationReqInput(StrictModel):
    """Body of POST /resume_memory_occupation. Without tags, all memory is taken again."""

    tags: Tags = list(MEMORY_TAGS)


class SlowDownReqInput(StrictModel):
    """Body of POST /slow_down."""

    forward_sleep_time: Annotated[float, Field(gt=0, le=60)] | None = None
    """Seconds to sleep at each step; none if unset."""


BODIES = (ReleaseMemoryOccupationReqInput, ResumeMemoryOccupationReqInput, SlowDownReqInput)


def memory_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["control"])

    async def carry_out(request: Request, make: Callable[[int], Command]) -> Response:
        work = front.tokenizer_manager.command(make, patience_s=PATIENCE_S)
        reply = await while_connected(request, work)
        return json_response({"status": "ok", "success": True, "message": reply.carried_out().message})

    @router.post("/release_memory_occupation", openapi_extra=takes(ReleaseMemoryOccupationReqInput) | gives(Done))
    async def release_memory_occupation(request: Request) -> Response:
        """Release the memory of an idle engine: the weights, the KV cache, or both. Captured graphs contain their
        addresses and are released with either. Requests get a 503 until all is resumed.
        """
        tags = (await read_optional(request, ReleaseMemoryOccupationReqInput)).tags
        return await carry_out(request, lambda number: ReleaseMemoryOccupationReq(id=number, tags=tags))

    @router.post("/resume_memory_occupation", openapi_extra=takes(ResumeMemoryOccupationReqInput) | gives(Done))
    async def resume_memory_occupation(request: Request) -> Response:
        """Allocate the memory again. Weights are read from their checkpoint, or from a copy on the host; graphs are
        captured again.
        """
        tags = (await read_optional(request, ResumeMemoryOccupationReqInput)).tags
        return await carry_out(request, lambda number: ResumeMemoryOccupationReq(id=number, tags=tags))

    @router.post("/slow_down", openapi_extra=takes(SlowDownReqInput) | gives(Done))
    async def slow_down(request: Request) -> Response:
        """Let each step sleep from now on, to simulate a slower engine."""
        seconds = (await read_optional(request, SlowDownReqInput)).forward_sleep_time
        return await carry_out(request, lambda number: SlowDownReq(id=number, forward_sleep_time=seconds))

    return router
