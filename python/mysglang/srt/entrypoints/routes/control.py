"""Routes that change what the server does: POST only, and behind the admin key where there is one."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.entrypoints.openapi import takes
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest

FLUSH_RETRY_S = 0.05
MAX_FLUSH_WAIT_S = 3600.0


class AbortRequest(StrictModel):
    """Body of POST /abort_request."""

    rid: str = ""
    abort_all: bool = False


def control_router(manager: Manager) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.post("/flush_cache", response_class=PlainTextResponse)
    async def flush_cache(
        request: Request, timeout: Annotated[float, Query(ge=0, le=MAX_FLUSH_WAIT_S)] = 0.0
    ) -> Response:
        """Empty the prefix cache. Answers 400 while requests run or wait; with `timeout`, waits up to that many seconds
        for idle.
        """
        await while_connected(request, _flush(manager, timeout))
        return PlainTextResponse("Cache flushed.\n")

    @router.post("/abort_request", response_class=Response, openapi_extra=takes(AbortRequest))
    async def abort_request(request: Request) -> Response:
        """Stop the request with exactly this `rid`, or all requests. What it generated so far is its answer, with
        finish reason abort.

        An API key stops its own requests only, the admin key those of any key. Answers 200, empty, also if there is no
        such request: it may have ended by itself a moment ago.
        """
        body = await read_model(request, AbortRequest)
        if bool(body.rid) == body.abort_all:
            raise InvalidRequest("Exactly one of rid and abort_all=true is required.", param="rid")
        manager.abort_request(body.rid, abort_all=body.abort_all)
        return Response()

    return router


async def _flush(manager: Manager, patience_s: float) -> None:
    """Empties the prefix cache. Raises InvalidRequest if the scheduler is still busy after `patience_s` seconds."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while not (reply := await manager.flush_cache()).success:
        if asyncio.get_running_loop().time() >= deadline:
            raise InvalidRequest(reply.message)
        await asyncio.sleep(FLUSH_RETRY_S)
