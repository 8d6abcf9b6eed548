"""A file as it arrives: a multipart form, bounded in size while it is read, every field honoured or refused by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from mysglang.srt.entrypoints.body import BodyTooLarge, validate
from mysglang.srt.entrypoints.departure import ClientDisconnected
from mysglang.srt.entrypoints.ignored_fields import fields_of
from mysglang.srt.entrypoints.openai.files_record import (
    BATCH_INPUT,
    MAX_LIFE_S,
    MIN_LIFE_S,
    MONTH_S,
    UploadPurpose,
    checked_name,
)
from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.generate import FieldReport
from mysglang.srt.utils.disk import room_for

if TYPE_CHECKING:
    from mysglang.srt.entrypoints.openai.files_store import Arrival

MAX_FILE_BYTES = 200 << 20
"""OpenAI's bound for the input of a batch."""

_FORM_BYTES = 64 << 10
"""Bytes allowed for the other fields and the boundaries between them."""

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


def _a_file(value: object) -> UploadFile:
    if isinstance(value, UploadFile):
        return value
    raise ValueError("must be a file, with a name")


FormFile = Annotated[UploadFile, PlainValidator(_a_file), WithJsonSchema({"type": "string", "format": "binary"})]

# A form has only texts.
FormLife = Annotated[int, Field(ge=MIN_LIFE_S, le=MAX_LIFE_S, strict=False)]


class UploadFileRequest(StrictModel):
    """Form of POST /v1/files."""

    file: FormFile
    purpose: UploadPurpose
    anchor: Annotated[Literal["created_at"] | None, Field(alias=_ANCHOR)] = None
    seconds: Annotated[FormLife | None, Field(alias=_SECONDS)] = None

    @model_validator(mode="after")
    def _both_or_none(self) -> UploadFileRequest:
        if (self.anchor is None) != (self.seconds is None):
            raise InvalidRequest(f"{_ANCHOR} and {_SECONDS} belong together.", param=_ANCHOR)
        return self

    @property
    def life_s(self) -> int | None:
        """Lifetime in seconds. OpenAI's defaults: a month for the input of a batch, and no limit for other files."""
        if self.seconds is None and self.purpose == BATCH_INPUT:
            return MONTH_S
        return self.seconds


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a client uploads."""

    source: IO[bytes]
    """Open as long as the form is."""
    name: str
    purpose: str
    life_s: int | None
    """Seconds; None for ever."""


@asynccontextmanager
async def read_upload(request: Request, arrival: Arrival, limit: int = MAX_FILE_BYTES) -> AsyncIterator[Upload]:
    """Yields the upload in `request`; `arrival` counts its bytes.

    Raises InvalidRequest, NoRoom, ClientDisconnected, and BodyTooLarge as soon as the excess is known.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise InvalidRequest(f"The content type must be multipart/form-data, got {kind or 'none'!r}.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit + _FORM_BYTES:
        raise _too_large(limit)
    arrival.expect(max(int(declared) - _FORM_BYTES, 0) if declared.isdigit() else 0)
    parser = MultiPartParser(request.headers, _bounded(request, arrival, limit), max_files=1, max_fields=8)
    try:
        # A large body is kept on disk until it is complete.
        with room_for("this file"):
            form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"The form is not valid: {error.message}") from None
    try:
        yield _checked(form, limit, fields_of(request.scope))
    finally:
        await form.close()


def _checked(form: FormData, limit: int, fields: FieldReport) -> Upload:
    names = [name for name, _ in form.multi_items()]
    if len(names) > len(form):
        raise InvalidRequest("The form has a field more than once.", param=max(names, key=names.count))
    body = validate(UploadFileRequest, dict(form), fields)
    if (body.file.size or 0) > limit:
        raise _too_large(limit)
    return Upload(body.file.file, checked_name(body.file.filename or ""), body.purpose, body.life_s)


async def _bounded(request: Request, arrival: Arrival, limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit + _FORM_BYTES:
                raise _too_large(limit)
            if size > _FORM_BYTES:
                arrival.grow(min(len(part), size - _FORM_BYTES))
            yield part
    except ClientDisconnect:
        raise ClientDisconnected("The client left while it sent its file.") from None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is larger than {limit} bytes.", param="file")
