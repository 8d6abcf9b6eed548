"""ResponseStore: what was answered, in memory, for as long as there is room.

The room is for all API keys. When it is full, the key that has most of it gives way: its oldest response goes first.

A response counts with all of the conversation that it is in, though conversations share what they have in common,
so the bound holds however they are spun on. Knows no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from mysglang.srt.entrypoints.openai.responses.background import EventLog
from mysglang.srt.entrypoints.openai.responses.translate import StoredItem
from mysglang.srt.errors import NotFound
from mysglang.srt.managers.caller import CALLER
from mysglang.srt.utils.shared_room import SharedRoom

MAX_RESPONSES = 10_000
MAX_BYTES = 256 << 20
"""Bytes of all stored responses, as JSON."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response, and the conversation that it answers."""

    response: dict[str, Any]
    """The response as clients receive it."""
    items: tuple[StoredItem, ...]
    """The conversation before its output."""
    log: EventLog | None = None
    """Its events, if it was asked for as a stream in the background."""

    @property
    def conversation(self) -> tuple[StoredItem, ...]:
        """The items that the next turn continues."""
        return (*self.items, *self.response["output"])


class ResponseStore:
    """Stores responses by API key and id; no key finds the responses of another one."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._number = SharedRoom(max_responses)
        self._bytes = SharedRoom(max_bytes)
        self._kept: dict[str, dict[str, tuple[StoredResponse, int]]] = {}
        """Responses by key, then by id, with the bytes that are counted for them; the oldest comes first."""

    def __len__(self) -> int:
        return self._number.used

    def put(self, stored: StoredResponse) -> None:
        """Stores a response, replacing one with the same id. Removes the oldest ones beyond the limits, but never this
        one.
        """
        owner, response_id = CALLER.get().api_key, stored.response["id"]
        self._drop(owner, response_id)
        size = len(orjson.dumps([stored.response, stored.items]))
        if stored.log is not None:
            size += stored.log.nbytes
        self._kept.setdefault(owner, {})[response_id] = (stored, size)
        self._number.take(owner, 1)
        self._bytes.take(owner, size)
        self._make_room(owner, response_id)

    def grow(self, response_id: str, size: int) -> bool:
        """Counts `size` more bytes of events for a response in the background. Returns False if it is not stored any
        more.
        """
        owner = CALLER.get().api_key
        if (found := self._kept.get(owner, {}).get(response_id)) is None:
            return False
        stored, counted = found
        self._kept[owner][response_id] = (stored, counted + size)
        self._bytes.take(owner, size)
        self._make_room(owner, response_id)
        return True

    def _make_room(self, owner: str, response_id: str) -> None:
        """Removes the oldest responses beyond the limits, but never the one that is named."""
        for room in (self._number, self._bytes):
            while room.overfull and (oldest := self._oldest(room.largest())) != (owner, response_id):
                self._drop(*oldest)

    def get(self, response_id: str) -> StoredResponse:
        """Returns a stored response. Raises NotFound, also for one that was removed."""
        found = self._kept.get(CALLER.get().api_key, {}).get(response_id)
        if found is None:
            raise NotFound(f"There is no response {response_id!r} here.", param="response_id")
        return found[0]

    def delete(self, response_id: str) -> None:
        """Removes a stored response. Raises NotFound."""
        self.get(response_id)
        self._drop(CALLER.get().api_key, response_id)

    def _oldest(self, owner: str) -> tuple[str, str]:
        return owner, next(iter(self._kept[owner]))

    def _drop(self, owner: str, response_id: str) -> None:
        if response_id not in (mine := self._kept.get(owner, {})):
            return
        _, size = mine.pop(response_id)
        self._number.give(owner, 1)
        self._bytes.give(owner, size)
        if not mine:
            del self._kept[owner]
