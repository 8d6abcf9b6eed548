"""/v1/files and /v1/batches, as OpenAI's clients know them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.entrypoints.json_response import json_response
from mysglang.srt.entrypoints.openai.batches_record import CreateBatchRequest
from mysglang.srt.entrypoints.openai.files_desk import Desk
from mysglang.srt.entrypoints.openai.files_record import page
from mysglang.srt.entrypoints.openai.files_upload import UploadFileRequest, read_upload
from mysglang.srt.entrypoints.openapi import FORM, takes

BODIES = (UploadFileRequest, CreateBatchRequest)

MAX_PAGE = 10_000
BATCH_PAGE, MAX_BATCH_PAGE = 20, 100
"""OpenAI's."""

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
BatchLimit = Annotated[int, Query(ge=1, le=MAX_BATCH_PAGE)]


def files_router(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["files"])

    @router.post("/v1/files", openapi_extra=takes(UploadFileRequest, FORM))
    async def upload_file(request: Request) -> Response:
        """Keep a file, such as the input of a batch."""
        files = desk.files
        async with read_upload(request) as upload:
            record = await files.add(upload.source, name=upload.name, purpose=upload.purpose, life_s=upload.life_s)
        return json_response(record.wire())

    @router.get("/v1/files")
    async def list_files(
        after: str | None = None,
        limit: Limit = MAX_PAGE,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        """The files that are kept, by the time at which they came."""
        found = [record for record in desk.files.all() if purpose in (None, record.purpose)]
        if order == "asc":
            found.reverse()
        return json_response(page(found, after=after, limit=limit))

    @router.get("/v1/files/{file_id}")
    async def get_file(file_id: str) -> Response:
        """What is known of a file."""
        return json_response(desk.files.get(file_id).wire())

    @router.get("/v1/files/{file_id}/content")
    async def get_file_content(file_id: str) -> Response:
        """Its bytes."""
        files = desk.files
        # Whatever is in it: never a page that a browser would show.
        headers = {"x-content-type-options": "nosniff"}
        path = files.path(files.get(file_id))
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    @router.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str) -> Response:
        """Remove a file that no open batch needs."""
        await desk.files.delete(file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    _add_batches(router, desk)
    return router


def _add_batches(router: APIRouter, desk: Desk) -> None:
    @router.post("/v1/batches", openapi_extra=takes(CreateBatchRequest))
    async def create_batch(request: Request) -> Response:
        """Answer all requests of a file, in the background, behind other requests."""
        batches = desk.batches
        return json_response(await batches.create(await read_model(request, CreateBatchRequest)))

    @router.get("/v1/batches")
    async def list_batches(after: str | None = None, limit: BatchLimit = BATCH_PAGE) -> Response:
        """All batches, the newest first."""
        return json_response(desk.batches.list(after=after, limit=limit))

    @router.get("/v1/batches/{batch_id}")
    async def get_batch(batch_id: str) -> Response:
        """How far a batch is, and where its answers are."""
        return json_response(desk.batches.get(batch_id))

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(batch_id: str) -> Response:
        """Ask nothing more of a batch; what was answered so far is kept."""
        return json_response(await desk.batches.cancel(batch_id))
