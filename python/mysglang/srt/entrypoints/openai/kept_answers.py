"""Answers of the routes of files and batches, described for /openapi.json."""

from __future__ import annotations

from typing import Literal

from mysglang.srt.entrypoints.openai.answers import CachedTokens, ReasoningTokens
from mysglang.srt.entrypoints.openai.batches_record import BatchFault, Status
from mysglang.srt.entrypoints.openapi import Answer


class File(Answer):
    """The description of a file. Times are Unix seconds."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(Answer):
    """A page of files."""

    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Answer):
    """Answer to DELETE /v1/files/{file_id}."""

    id: str
    object: Literal["file"]
    deleted: bool


class BatchFaults(Answer):
    """The reasons why a file is no valid input."""

    object: Literal["list"]
    data: list[BatchFault]


class BatchCounts(Answer):
    """Numbers of lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchUsage(Answer):
    """Tokens of all lines that were answered."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Batch(Answer):
    """A batch. Times are Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(Answer):
    """A page of batches."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
