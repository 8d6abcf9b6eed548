"""ResponseStore: what was answered, in memory, for as long as there is room: the oldest goes first.

A response counts with all of the conversation that it stands in, though conversations share what they have in common,
so the bound holds however they are spun on. Knows no request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from mysglang.srt.entrypoints.openai.responses.event_log import EventLog
from mysglang.srt.entrypoints.openai.responses.translate import StoredItem
from mysglang.srt.errors import NotFound
from mysglang.srt.managers.caller import CALLER

MAX_RESPONSES = 10_000
MAX_BYTES = 256 << 20
"""Of JSON."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it answers."""

    response: dict[str, Any]
    """As clients get to see it."""
    items: tuple[StoredItem, ...]
    """The conversation before its output."""
    log: EventLog | None = None
    """Its events, if it was asked for as a stream in the background."""

    @property
    def conversation(self) -> tuple[StoredItem, ...]:
        """What the next turn goes on from."""
        return (*self.items, *self.response["output"])


class ResponseStore:
    """By id."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        """By whose they are and their id: with several API keys nobody finds another's."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stored: StoredResponse) -> None:
        """Keep it, in the place of what has its id; forget the oldest beyond the bounds, but never this one."""
        response_id = stored.response["id"]
        self._drop(_owned(response_id))
        size = len(orjson.dumps([stored.response, stored.items]))
        if stored.log is not None:
            size += stored.log.nbytes
        self._kept[_owned(response_id)] = (stored, size)
        self._bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self._max_responses or self._bytes > self._max_bytes):
            self._drop(next(iter(self._kept)))

    def get(self, response_id: str) -> StoredResponse:
        """Raises NotFound, also for what was forgotten."""
        if _owned(response_id) not in self._kept:
            raise NotFound(f"There is no response {response_id!r} here.", param="response_id")
        return self._kept[_owned(response_id)][0]

    def delete(self, response_id: str) -> None:
        """Raises NotFound."""
        self.get(response_id)
        self._drop(_owned(response_id))

    def _drop(self, key: tuple[str, str]) -> None:
        if key in self._kept:
            self._bytes -= self._kept.pop(key)[1]


def _owned(response_id: str) -> tuple[str, str]:
    return CALLER.get().api_key, response_id
