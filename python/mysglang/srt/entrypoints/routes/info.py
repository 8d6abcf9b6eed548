"""What this server is: /model_info, /server_info with their deprecated aliases, and the root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.streaming import while_connected
from mysglang.srt.messages.control import GetInternalStateReqOutput
from mysglang.srt.utils.version import __version__


def info_router(front: Front, model_info: Mapping[str, Any], server_info: Mapping[str, Any]) -> APIRouter:
    """`server_info`: every option of the server by its name, without the secret ones."""
    router = APIRouter(tags=["info"])

    @router.head("/")
    @router.get("/")
    async def root() -> Response:
        return PlainTextResponse("mysglang is running\n")

    @router.get("/model_info")
    @router.get("/get_model_info", deprecated=True)
    async def get_model_info() -> Response:
        """Which model is served."""
        return json_response(model_info)

    @router.get("/server_info")
    @router.get("/get_server_info", deprecated=True)
    async def get_server_info(request: Request) -> Response:
        """The server's options, its capacity, and what the scheduler holds at this moment."""
        state = await while_connected(request.receive, front.tokenizer_manager.get_internal_state())
        return json_response(
            {
                **server_info,
                "version": __version__,
                "frontend": "python",
                "scheduler_info": msgspec.structs.asdict(front.facts),
                "internal_states": [_without_id(state)],
                "frontend_state": {"open_requests": front.tokenizer_manager.open_requests},
            }
        )

    return router


def _without_id(state: GetInternalStateReqOutput) -> dict[str, Any]:
    """The number that pairs a reply with its question is nobody's business."""
    return {name: value for name, value in msgspec.structs.asdict(state).items() if name != "id"}
