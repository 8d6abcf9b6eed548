"""A stored file as OpenAI's clients see it, and the pages in which lists are handed out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Literal, Protocol

import msgspec

from mysglang.srt.errors import InvalidRequest

UploadPurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
BATCH_INPUT = "batch"
BATCH_OUTPUT = "batch_output"

DAY_S = 24 * 60 * 60
MONTH_S = 30 * DAY_S
MIN_LIFE_S = 60 * 60
MAX_LIFE_S = MONTH_S
"""OpenAI's bounds of what a client may ask for."""

MAX_NAME = 255
"""Largest number of characters in a file's name, which is returned to clients and never used as a path."""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stored facts about a file, without its bytes. Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    owner: str = ""
    """The key that it came with, by `auth.owner_of`: to others it does not exist."""

    @property
    def size(self) -> int:
        return self.bytes

    @property
    def ends_at(self) -> int | None:
        return self.expires_at

    def wire(self) -> dict[str, object]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Recorded(Protocol):
    """An object that can be listed."""

    @property
    def id(self) -> str: ...

    def wire(self) -> dict[str, object]: ...


def page(items: Iterable[Recorded], *, after: str | None, limit: int) -> dict[str, object]:
    """Returns a page of at most `limit` of `items`, those after the one named `after`. Raises InvalidRequest if there
    is none.
    """
    rest = iter(items)
    if after is not None and not any(item.id == after for item in rest):
        raise InvalidRequest(f"after: there is no {after!r} in this list.", param="after")
    shown = list(islice(rest, limit))
    return {
        "object": "list",
        "data": [item.wire() for item in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": next(rest, None) is not None,
    }


def checked_name(name: str) -> str:
    """Checks the name that a client gives its file, and returns it. Raises InvalidRequest."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequest(f"file: the name must have 1 to {MAX_NAME} printable characters.", param="file")
    return name


def now() -> int:
    """Returns the time in Unix seconds, the form of all times of files and batches."""
    return int(time.time())
