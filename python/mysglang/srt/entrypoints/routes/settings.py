"""/set_internal_state: options that change while the server runs. Closed unless there is an admin key."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.departure import while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.ignored_fields import safe
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import InternalStateSet
from mysglang.srt.entrypoints.openapi import gives, takes
from mysglang.srt.entrypoints.strict_model import StrictModel, not_here
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.control import SetInternalStateReq


class ChangingServerArgs(StrictModel):
    """Options by the names that they have when the server starts. Absent options stay unchanged."""

    schedule_conservativeness: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    """Tokens between two frames of a stream, at least 1, for requests that begin from now on and do not say."""
    decode_log_interval: Annotated[int, Field(ge=1)] | None = None
    unsupported = not_here(
        "pp_max_micro_batch_size",
        "speculative_accept_threshold_single",
        "speculative_accept_threshold_acc",
        "dspark_force_budget_frac",
        "dspark_clear_info_records",
    )

    @classmethod
    def translated(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Refuses every other option, whatever --unknown-fields says, because the answer reports all given options as
        changed.
        """
        for name in data.keys() - cls.model_fields.keys() - cls.unsupported.keys():
            message = f"server_args.{safe(name)}: this option cannot change while the server runs."
            raise InvalidRequest(message, param=f"server_args.{safe(name)}")
        return data


class SetInternalStateReqInput(StrictModel):
    """Body of POST /set_internal_state."""

    server_args: ChangingServerArgs


BODIES = (SetInternalStateReqInput,)

SET = takes(SetInternalStateReqInput) | gives(InternalStateSet)


def settings_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.put("/set_internal_state", openapi_extra=SET)
    @router.post("/set_internal_state", openapi_extra=SET)
    async def set_internal_state(request: Request) -> Response:
        """Change options of the running server. Returns all options that can be changed, with their current values."""
        wanted = (await read_model(request, SetInternalStateReqInput)).server_args
        fields = wanted.model_dump()
        reply = await while_connected(
            request, front.tokenizer_manager.command(lambda number: SetInternalStateReq(id=number, **fields))
        )
        return json_response({"updated": True, "server_args": reply.details})

    return router
