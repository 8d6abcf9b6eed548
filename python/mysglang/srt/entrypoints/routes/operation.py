"""Routes for the operator: pausing, profiling, logging, and a look inside. Closed unless there is an admin key; routes
that change something are POST only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_optional
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import Done, LoggingSettings
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.profile_body import PROFILE_S, ProfileReqInput
from mysglang.srt.entrypoints.request_dump import check_folder, written
from mysglang.srt.entrypoints.routes.debug import debug_router
from mysglang.srt.entrypoints.routes.memory import BODIES as MEMORY_BODIES
from mysglang.srt.entrypoints.routes.memory import memory_router
from mysglang.srt.entrypoints.routes.settings import BODIES as SETTINGS_BODIES
from mysglang.srt.entrypoints.routes.settings import settings_router
from mysglang.srt.entrypoints.routes.weights import BODIES as WEIGHT_BODIES
from mysglang.srt.entrypoints.routes.weights import weights_router
from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.messages.control import (
    Command,
    ContinueGenerationReq,
    FreezeFrontGcReq,
    FreezeGcReq,
    PauseGenerationReq,
    PauseMode,
    RequestLogReq,
    StopProfileReq,
)
from mysglang.srt.utils.process import freeze_heap


class PauseGenerationReqInput(StrictModel):
    """Body of POST /pause_generation."""

    mode: PauseMode = "abort"
    """How running requests are treated: `abort` ends them, `retract` frees their memory, `in_place` keeps it."""


class ContinueGenerationReqInput(StrictModel):
    """Body of POST /continue_generation."""

    unsupported = not_here("torch_empty_cache", unless=OFF)


class ConfigureLoggingReq(StrictModel):
    """Body of POST /configure_logging. Absent fields stay unchanged."""

    log_requests: bool | None = None
    dump_requests_folder: str | None = None
    """Directory in which every finished request is kept; an empty text ends that."""
    unsupported = {
        **not_here("log_requests_level", "log_requests_format", "log_level", "crash_dump_folder"),
        **not_here("dump_requests_exclude_meta_keys"),
        **not_here("dump_requests_threshold", unless=(1,)),
    }


BODIES = (
    PauseGenerationReqInput,
    ContinueGenerationReqInput,
    ProfileReqInput,
    ConfigureLoggingReq,
    *WEIGHT_BODIES,
    *MEMORY_BODIES,
    *SETTINGS_BODIES,
)


def operation_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["control"])
    router.routes.extend(debug_router(front).routes)
    router.routes.extend(weights_router(front).routes)
    router.routes.extend(memory_router(front).routes)
    router.routes.extend(settings_router(front).routes)

    async def carry_out(
        request: Request, make: Callable[[int], Command], *, patience_s: float | None = None
    ) -> Response:
        reply = await while_connected(request, front.tokenizer_manager.command(make, patience_s=patience_s))
        return json_response({"status": "ok", "success": True, "message": reply.carried_out().message})

    @router.post("/pause_generation", openapi_extra=takes(PauseGenerationReqInput) | gives(Done))
    async def pause_generation(request: Request) -> Response:
        """Launch no step until /continue_generation; new requests wait. The `mode` decides about running requests:
        they end with what they have, free their memory and wait, or keep it and wait.
        """
        body = await read_optional(request, PauseGenerationReqInput)
        return await carry_out(request, lambda number: PauseGenerationReq(id=number, mode=body.mode))

    @router.post("/continue_generation", openapi_extra=takes(ContinueGenerationReqInput) | gives(Done))
    async def continue_generation(request: Request) -> Response:
        """Continue after a pause."""
        await read_optional(request, ContinueGenerationReqInput)
        return await carry_out(request, lambda number: ContinueGenerationReq(id=number))

    @router.post("/freeze_gc", openapi_extra=gives(Done))
    async def freeze_gc(request: Request) -> Response:
        """Exclude all current objects from garbage collection, in this process and in the scheduler."""
        freeze_heap()
        front.tokenizer_manager.notify_fronts(FreezeFrontGcReq())
        return await carry_out(request, lambda number: FreezeGcReq(id=number))

    @router.post("/start_profile", openapi_extra=takes(ProfileReqInput) | gives(Done))
    async def start_profile(request: Request) -> Response:
        """Record what the scheduler's process and its device do, with torch's profiler (`CPU`, `GPU`), or the phases of
        its steps (`STEPS`).
        """
        body = await read_optional(request, ProfileReqInput)
        body.command(0)  # a wrong field is refused before the scheduler is asked
        return await carry_out(request, body.command, patience_s=PROFILE_S)

    @router.post("/stop_profile", openapi_extra=gives(Done))
    async def stop_profile(request: Request) -> Response:
        """Stop recording, and write the trace."""
        return await carry_out(request, lambda number: StopProfileReq(id=number), patience_s=PROFILE_S)

    @router.post("/configure_logging", openapi_extra=takes(ConfigureLoggingReq) | gives(LoggingSettings))
    async def configure_logging(request: Request) -> Response:
        """Switch the logging of requests, and their storage in files, on or off."""
        body = await read_optional(request, ConfigureLoggingReq)
        if body.dump_requests_folder:
            await asyncio.to_thread(check_folder, Path(body.dump_requests_folder))
        if body.log_requests is not None:
            front.request_log.log_requests = body.log_requests
        if body.dump_requests_folder is not None:
            front.request_log.dump_folder = body.dump_requests_folder
            # An answer that says that it is over finds the files complete, unless the disk is in trouble.
            await asyncio.to_thread(written)
        log = front.request_log
        front.tokenizer_manager.notify_fronts(RequestLogReq(log_requests=log.log_requests, dump_folder=log.dump_folder))
        settings = {"log_requests": front.request_log.log_requests}
        return json_response({**settings, "dump_requests_folder": front.request_log.dump_folder})

    return router
