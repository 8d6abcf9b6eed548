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
from mysglang.srt.entrypoints.openai.kept_answers import Batch, BatchList, DeletedFile, File, FileList
from mysglang.srt.entrypoints.openapi import FORM, gives, gives_bytes, takes
from mysglang.srt.entrypoints.owner import owner_of

BODIES = (UploadFileRequest, CreateBatchRequest)

MAX_PAGE = 10_000
BATCH_PAGE, MAX_BATCH_PAGE = 20, 100
"""OpenAI's."""

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
BatchLimit = Annotated[int, Query(ge=1, le=MAX_BATCH_PAGE)]


def files_router(desk: Desk) -> APIRouter:
    router = APIRouter(tags=["files"])

    @router.post("/v1/files", openapi_extra=takes(UploadFileRequest, FORM) | gives(File))
    async def upload_file(request: Request) -> Response:
        """Upload a file, such as the input of a batch."""
        files, owner = desk.files, owner_of(request.scope)
        with files.arriving(owner) as arrival:
            async with read_upload(request, arrival) as upload:
                record = await files.add(
                    upload.source,
                    arrival=arrival,
                    owner=owner,
                    name=upload.name,
                    purpose=upload.purpose,
                    life_s=upload.life_s,
                )
        return json_response(record.wire())

    @router.get("/v1/files", openapi_extra=gives(FileList))
    async def list_files(
        request: Request,
        after: str | None = None,
        limit: Limit = MAX_PAGE,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        """List the stored files, by the time of their upload. A key sees only its own files."""
        records = desk.files.of_owner(owner_of(request.scope), oldest_first=order == "asc")
        found = (record for record in records if purpose in (None, record.purpose))
        return json_response(page(found, after=after, limit=limit))

    @router.get("/v1/files/{file_id}", openapi_extra=gives(File))
    async def get_file(request: Request, file_id: str) -> Response:
        """Return the description of a file."""
        return json_response(desk.files.get(file_id, owner_of(request.scope)).wire())

    @router.get("/v1/files/{file_id}/content", response_class=FileResponse, openapi_extra=gives_bytes())
    async def get_file_content(request: Request, file_id: str) -> Response:
        """Return the content of a file."""
        files = desk.files
        # Whatever is in it: never a page that a browser would show.
        headers = {"x-content-type-options": "nosniff"}
        path = files.path(files.get(file_id, owner_of(request.scope)))
        return FileResponse(path, media_type="application/octet-stream", headers=headers)

    @router.delete("/v1/files/{file_id}", openapi_extra=gives(DeletedFile))
    async def delete_file(request: Request, file_id: str) -> Response:
        """Remove a file that no open batch needs."""
        await desk.files.delete(file_id, owner_of(request.scope))
        return json_response({"id": file_id, "object": "file", "deleted": True})

    _add_batches(router, desk)
    return router


def _add_batches(router: APIRouter, desk: Desk) -> None:
    @router.post("/v1/batches", openapi_extra=takes(CreateBatchRequest) | gives(Batch))
    async def create_batch(request: Request) -> Response:
        """Create a batch: all requests of a file are answered in the background, after other requests."""
        batches = desk.batches
        body = await read_model(request, CreateBatchRequest)
        return json_response(await batches.create(body, owner_of(request.scope)))

    @router.get("/v1/batches", openapi_extra=gives(BatchList))
    async def list_batches(request: Request, after: str | None = None, limit: BatchLimit = BATCH_PAGE) -> Response:
        """List the batches, the newest first. A key sees only its own batches."""
        return json_response(desk.batches.list(owner_of(request.scope), after=after, limit=limit))

    @router.get("/v1/batches/{batch_id}", openapi_extra=gives(Batch))
    async def get_batch(request: Request, batch_id: str) -> Response:
        """Return the state of a batch, and the ids of the files with its answers."""
        return json_response(desk.batches.get(batch_id, owner_of(request.scope)))

    @router.post("/v1/batches/{batch_id}/cancel", openapi_extra=gives(Batch))
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """Cancel a batch. Lines that were answered so far are kept."""
        return json_response(await desk.batches.cancel(batch_id, owner_of(request.scope)))
