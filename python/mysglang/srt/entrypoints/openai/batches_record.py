"""A batch's record, and each step of its life as a function from one record to the next.

    validating → in_progress → finalizing → completed
        │             ├──────→ finalizing → expired
        │             ├──────→ cancelling → cancelled
        └→ failed     └──────→ finalizing → failed: its input was damaged

Knows neither disk nor engine. Times are Unix seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from mysglang.srt.entrypoints.openai.files_record import DAY_S, MAX_LIFE_S, MIN_LIFE_S, MONTH_S
from mysglang.srt.entrypoints.openai.protocol import Metadata
from mysglang.srt.entrypoints.strict_model import StrictModel

Ending = Literal["completed", "cancelled", "expired", "failed"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]

OVER = frozenset({"failed", "completed", "expired", "cancelled"})
"""States that a batch does not leave."""


class OutputExpiresAfter(StrictModel):
    """How long the files with the answers are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_LIFE_S, le=MAX_LIFE_S)]


class CreateBatchRequest(StrictModel):
    """Body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata = {}
    output_expires_after: OutputExpiresAfter | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a file is no valid input of a batch, in OpenAI's form."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Number of the line that is wrong, from 1; null where no single line is to blame."""


class Tally(msgspec.Struct, kw_only=True):
    """Counts of the lines that are done, and the tokens that they used."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stored facts about a batch."""

    id: str
    endpoint: str
    model: str
    input_file_id: str
    owner: str = ""
    """The key that asked for it, by `auth.owner_of`: to others neither it nor its files exist."""
    status: Status = "validating"
    created_at: int
    expires_at: int
    output_life_s: int = MONTH_S
    metadata: dict[str, str] = {}
    errors: list[BatchFault] = []
    total: int = 0
    """Lines of the input."""
    ending: Ending | None = None
    """How it ends, once no line is asked any more."""
    tally: Tally | None = None
    """Set with `ending`; until then the journal knows."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def size(self) -> int | None:
        """None: the record counts against limits by its bytes as JSON."""
        return None

    @property
    def ends_at(self) -> int | None:
        """A batch that is over may be forgotten at any time."""
        return self.created_at if self.over else None

    @property
    def over(self) -> bool:
        return self.status in OVER

    def wire(self) -> dict[str, object]:
        """Returns the record as OpenAI's clients see it."""
        tally = self.tally or Tally()
        there = self.over
        times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": msgspec.to_builtins(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            # Named only once the files are there.
            "output_file_id": self.output_file_id if there else None,
            "error_file_id": self.error_file_id if there else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{time}_at": getattr(self, f"{time}_at") for time in times},
            "request_counts": {"total": self.total, "completed": tally.completed, "failed": tally.failed},
            "usage": _usage(tally),
            "metadata": self.metadata or None,
        }


def new_record(body: CreateBatchRequest, model: str, owner: str, now: int) -> BatchRecord:
    expiry = body.output_expires_after
    return BatchRecord(
        id=f"batch_{uuid.uuid4().hex}",
        endpoint=body.endpoint,
        model=model,
        input_file_id=body.input_file_id,
        owner=owner,
        created_at=now,
        expires_at=now + DAY_S,
        output_life_s=MONTH_S if expiry is None else expiry.seconds,
        metadata=body.metadata,
    )


def begun(record: BatchRecord, total: int, now: int) -> BatchRecord:
    """Returns the record of a batch whose input is valid. A batch that was cancelled before stays cancelled."""
    record = msgspec.structs.replace(record, total=total)
    if record.status != "validating":
        return record
    return msgspec.structs.replace(record, status="in_progress", in_progress_at=now)


def failed(record: BatchRecord, faults: Sequence[BatchFault], now: int) -> BatchRecord:
    """Returns the record of a batch whose input is not valid, so that no line was sent."""
    return msgspec.structs.replace(record, status="failed", failed_at=now, errors=list(faults), tally=Tally())


def blamed(record: BatchRecord, faults: Sequence[BatchFault]) -> BatchRecord:
    """Returns the record of a batch whose input became invalid after some lines were answered."""
    return msgspec.structs.replace(record, errors=list(faults))


def cancelling(record: BatchRecord, now: int) -> BatchRecord:
    """Returns the record of a batch that a client cancels. This has an effect only while its lines are being
    answered.
    """
    if record.status not in ("validating", "in_progress"):
        return record
    return msgspec.structs.replace(record, status="cancelling", cancelling_at=now)


def counted(record: BatchRecord, tally: Tally) -> BatchRecord:
    """Returns the record with the present counts."""
    return msgspec.structs.replace(record, tally=tally)


def ending(
    record: BatchRecord, how: Ending, tally: Tally, output: str | None, errors: str | None, now: int
) -> BatchRecord:
    """Returns the record of a batch that sends no further line. Answers and errors, if any, become files of these
    names.
    """
    record = msgspec.structs.replace(record, ending=how, tally=tally, output_file_id=output, error_file_id=errors)
    if how == "cancelled":
        return record
    return msgspec.structs.replace(record, status="finalizing", finalizing_at=now)


def reopened(record: BatchRecord) -> BatchRecord:
    """Returns the record of a batch whose answers are partly lost from the disk: their lines are sent again."""
    status: Status = "in_progress" if record.status == "finalizing" else record.status
    return msgspec.structs.replace(
        record, ending=None, status=status, tally=None, output_file_id=None, error_file_id=None, finalizing_at=None
    )


def ended(record: BatchRecord, now: int) -> BatchRecord:
    """Returns the record of a batch that has ended. Its output files must exist already."""
    assert record.ending is not None, "a batch ends before it has ended"
    moment = {f"{record.ending}_at": now}
    return msgspec.structs.replace(record, status=record.ending, **moment)


def _usage(tally: Tally) -> dict[str, object]:
    return {
        "input_tokens": tally.input_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.input_tokens + tally.output_tokens,
    }
