"""Routes that change the weights of a running engine, or read them. Closed unless there is an admin key, POST only.

Requests that are open are finished with the old weights, and those that arrive during the change wait, unless
generation is paused: then the weights change at once. What is wrong with new weights is found before one of the old
ones is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mysglang.srt.entrypoints.body import LIMITS, make_of, read_body, read_model, validate
from mysglang.srt.entrypoints.departure import ClientDisconnected, while_connected
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.native_answers import Checksums, WeightsChanged
from mysglang.srt.entrypoints.openapi import BYTES, gives, takes
from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.entrypoints.weight_commands import (
    DEFAULT_GROUP,
    PATIENCE_S,
    DiskFormat,
    private_folder,
    spooled,
    update_from_disk,
    update_from_folder,
    write_encoded,
)
from mysglang.srt.messages.control import Command, ControlReqOutput
from mysglang.srt.messages.weights import (
    MAX_ROWS,
    CheckWeightsReq,
    DestroyWeightsUpdateGroupReq,
    GetWeightsByNameReq,
    InitWeightsUpdateGroupReq,
    UpdateWeightsFromDistributedReq,
    UpdateWeightVersionReq,
    WeightUpdate,
)

MAX_ENCODED_BYTES = 1 << 30
ENCODED = replace(LIMITS, text_bytes=MAX_ENCODED_BYTES)
"""Limit for tensors in JSON, which is held in memory; larger ones are sent as plain bytes."""

Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Update(StrictModel):
    """Fields of every weight update, however the weights arrive."""

    abort_all_requests: bool = False
    flush_cache: bool = True
    weight_version: Name | None = None

    @property
    def update(self) -> WeightUpdate:
        return WeightUpdate(
            abort_all_requests=self.abort_all_requests,
            flush_cache=self.flush_cache,
            weight_version=self.weight_version,
        )


TARGET = not_here("selector", unless=("target", "all"))
EMPTY = not_here("torch_empty_cache", unless=OFF)


class UpdateWeightFromDiskReqInput(_Update):
    """Body of POST /update_weights_from_disk."""

    model_path: Name
    load_format: DiskFormat = "auto"
    unsupported = {
        **EMPTY,
        **not_here("is_async", "recapture_cuda_graph", "keep_pause", unless=OFF),
        **not_here("token_step", unless=(0,)),
        **not_here("manifest"),
    }


class UpdateWeightsFromTensorReqInput(_Update):
    """Body of POST /update_weights_from_tensor."""

    serialized_named_tensors: Annotated[list[str], Field(min_length=1)]
    load_format: Literal["safetensors"] = "safetensors"
    unsupported = {**TARGET, **EMPTY, **not_here("disable_draft_model", unless=OFF)}


class UpdateWeightsFromDistributedReqInput(_Update):
    """Body of POST /update_weights_from_distributed."""

    names: Annotated[list[Name], Field(min_length=1)]
    dtypes: list[str]
    shapes: list[list[Annotated[int, Field(ge=0)]]]
    group_name: Name = DEFAULT_GROUP
    unsupported = {**TARGET, **EMPTY, **not_here("load_format")}


class InitWeightsUpdateGroupReqInput(StrictModel):
    """Body of POST /init_weights_update_group."""

    master_address: Name
    master_port: Annotated[int, Field(ge=1, le=65535)]
    rank_offset: Annotated[int, Field(ge=1)]
    world_size: Annotated[int, Field(ge=2)]
    group_name: Name = DEFAULT_GROUP
    backend: Literal["nccl", "gloo"] = "nccl"


class DestroyWeightsUpdateGroupReqInput(StrictModel):
    """Body of POST /destroy_weights_update_group."""

    group_name: Name = DEFAULT_GROUP


class UpdateWeightVersionReqInput(StrictModel):
    """Body of POST /update_weight_version."""

    new_version: Name
    abort_all_requests: bool = True


class GetWeightsByNameReqInput(StrictModel):
    """Body of POST /get_weights_by_name."""

    name: Name
    truncate_size: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100


class CheckWeightsReqInput(StrictModel):
    """Body of POST /weights_checker."""

    action: Literal["checksum", "snapshot", "compare"]
    unsupported = {**TARGET, **not_here("allow_quant_error", unless=OFF), **not_here("skip_tensor_list", unless=([],))}


BODIES = (
    UpdateWeightFromDiskReqInput,
    UpdateWeightsFromTensorReqInput,
    UpdateWeightsFromDistributedReqInput,
    InitWeightsUpdateGroupReqInput,
    DestroyWeightsUpdateGroupReqInput,
    UpdateWeightVersionReqInput,
    GetWeightsByNameReqInput,
    CheckWeightsReqInput,
)


def weights_router(front: Front) -> APIRouter:
    router = APIRouter(tags=["control"])
    manager = front.tokenizer_manager
    _add_updates(router, front)
    _add_groups(router, front)

    async def ask(request: Request, make: Callable[[int], Command]) -> ControlReqOutput:
        reply = await while_connected(request, manager.command(make, patience_s=PATIENCE_S))
        return reply.carried_out()

    @router.post("/update_weight_version", openapi_extra=takes(UpdateWeightVersionReqInput) | gives(WeightsChanged))
    async def update_weight_version(request: Request) -> Response:
        """Set the name of the weights that answers report."""
        body = await read_model(request, UpdateWeightVersionReqInput)
        version, abort = body.new_version, body.abort_all_requests
        return _done(
            await ask(request, lambda n: UpdateWeightVersionReq(id=n, new_version=version, abort_all_requests=abort))
        )

    @router.post(
        "/get_weights_by_name", openapi_extra=takes(GetWeightsByNameReqInput) | gives(list[float | list[float]])
    )
    async def get_weights_by_name(request: Request) -> Response:
        """Return the first rows of a tensor, by its name in the checkpoint, as numbers."""
        body = await read_model(request, GetWeightsByNameReqInput)
        name, size = body.name, body.truncate_size
        reply = await ask(request, lambda n: GetWeightsByNameReq(id=n, name=name, truncate_size=size))
        return json_response(reply.details["parameter"])

    @router.post("/weights_checker", openapi_extra=takes(CheckWeightsReqInput) | gives(Checksums))
    async def weights_checker(request: Request) -> Response:
        """Return the SHA-256 of every tensor's bytes in the dtype of the model, or what changed since a snapshot of
        them.
        """
        body = await read_model(request, CheckWeightsReqInput)
        reply = await ask(request, lambda n: CheckWeightsReq(id=n, action=body.action))
        return json_response({"success": True, "message": reply.message, **reply.details})

    return router


def _add_updates(router: APIRouter, front: Front) -> None:
    manager = front.tokenizer_manager

    @router.post("/update_weights_from_disk", openapi_extra=takes(UpdateWeightFromDiskReqInput) | gives(WeightsChanged))
    async def update_weights_from_disk(request: Request) -> Response:
        """Load the weights of another checkpoint of the same model. The checkpoint is checked completely before a
        weight changes.
        """
        body = await read_model(request, UpdateWeightFromDiskReqInput)
        work = update_from_disk(manager, body.model_path, body.update, body.load_format)
        return _done(await while_connected(request, work))

    @router.post(
        "/update_weights_from_tensor", openapi_extra=takes(UpdateWeightsFromTensorReqInput) | gives(WeightsChanged)
    )
    async def update_weights_from_tensor(
        request: Request,
        abort_all_requests: Annotated[bool, Query()] = False,
        flush_cache: Annotated[bool, Query()] = True,
        weight_version: Annotated[str | None, Query(min_length=1, max_length=1000)] = None,
    ) -> Response:
        """Replace some of the model's tensors. The body is JSON with safetensors files in base64, or, as
        application/octet-stream, one such file of any size. The query parameters are for the second form, which has
        no fields.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == BYTES:
            update = WeightUpdate(
                abort_all_requests=abort_all_requests, flush_cache=flush_cache, weight_version=weight_version
            )
            declared = request.headers.get("content-length", "")
            async with spooled(_parts(request), int(declared) if declared.isdigit() else None) as folder:
                return _done(await while_connected(request, update_from_folder(manager, folder, update)))
        data = await read_body(request, MAX_ENCODED_BYTES)
        make = partial(validate, UpdateWeightsFromTensorReqInput, fields=fields_of(request.scope))
        body = await make_of(request, data, make, ENCODED)
        with private_folder() as folder:
            await asyncio.to_thread(write_encoded, folder, body.serialized_named_tensors)
            work = update_from_folder(manager, folder, body.update)
            return _done(await while_connected(request, work))

    @router.post(
        "/update_weights_from_distributed",
        openapi_extra=takes(UpdateWeightsFromDistributedReqInput) | gives(WeightsChanged),
    )
    async def update_weights_from_distributed(request: Request) -> Response:
        """Receive the tensors that rank 0 of a group broadcasts, one after another in this order."""
        body = await read_model(request, UpdateWeightsFromDistributedReqInput)

        def make(number: int) -> Command:
            return UpdateWeightsFromDistributedReq(
                id=number,
                names=body.names,
                dtypes=body.dtypes,
                shapes=body.shapes,
                group_name=body.group_name,
                update=body.update,
            )

        return _done(await while_connected(request, manager.command(make, patience_s=PATIENCE_S)))


def _add_groups(router: APIRouter, front: Front) -> None:
    manager = front.tokenizer_manager

    @router.post(
        "/init_weights_update_group", openapi_extra=takes(InitWeightsUpdateGroupReqInput) | gives(WeightsChanged)
    )
    async def init_weights_update_group(request: Request) -> Response:
        """Join a trainer's process group at a TCP address; the trainer is rank 0. Returns when all members have
        joined. Requests are served in that time.
        """
        body = await read_model(request, InitWeightsUpdateGroupReqInput)

        def make(number: int) -> Command:
            return InitWeightsUpdateGroupReq(id=number, **body.model_dump())

        return _done(await while_connected(request, manager.command(make, patience_s=PATIENCE_S)))

    @router.post(
        "/destroy_weights_update_group",
        openapi_extra=takes(DestroyWeightsUpdateGroupReqInput) | gives(WeightsChanged),
    )
    async def destroy_weights_update_group(request: Request) -> Response:
        """Leave a process group for weight updates, or give up joining it."""
        body = await read_model(request, DestroyWeightsUpdateGroupReqInput)
        name = body.group_name
        work = manager.command(lambda number: DestroyWeightsUpdateGroupReq(id=number, group_name=name))
        return _done(await while_connected(request, work))


def _done(reply: ControlReqOutput) -> Response:
    return json_response({"success": True, "message": reply.carried_out().message, **reply.details})


async def _parts(request: Request) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise ClientDisconnected("The client left while it sent its weights.") from None
