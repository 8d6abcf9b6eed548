"""Caller: who asks, known to whatever works on a request without being handed from part to part."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What came beside the request."""

    api_key: str = ""
    """The name of the key that was sent, which is not the key; empty where none is needed."""
    routing_key: str = ""
    remote: bool = False
    """Whether it asks over HTTP, and so may leave unread what comes for it."""
    admin: bool = False
    """Whether it came with the admin key."""

    @property
    def scope(self) -> str | None:
        """The key whose requests it may end; None for all keys, as the admin and this process itself may."""
        return None if self.admin or not self.remote else self.api_key


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - frozen
