"""The caller of a request and its trace: known to all parts that work on the request, without being handed on."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType


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


NO_PARENT: Mapping[str, str] = MappingProxyType({})

TRACE_PARENT: ContextVar[Mapping[str, str]] = ContextVar("trace_parent", default=NO_PARENT)
"""W3C's headers `traceparent` and `tracestate`; set only where requests are traced."""
