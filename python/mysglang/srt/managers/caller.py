"""The caller of a request and its trace: known to all parts that work on the request, without being handed on."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Facts about the client of a request."""

    api_key: str = ""
    """The name of the key that was sent, which is not the key; empty where none is needed."""
    routing_key: str = ""
    remote: bool = False
    """True if it asks over HTTP, and so may leave its answer unread."""
    admin: bool = False
    """True if it used the admin key."""

    @property
    def scope(self) -> str | None:
        """The API key whose requests it may abort; None for all keys, as for the admin and for this process itself."""
        return None if self.admin or not self.remote else self.api_key

    def routing_key_of(self, own: str | None) -> str:
        """Returns the routing key of a request: its `own`, else that of the client's headers."""
        return self.routing_key if own is None else own


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - frozen


NO_PARENT: Mapping[str, str] = MappingProxyType({})

TRACE_PARENT: ContextVar[Mapping[str, str]] = ContextVar("trace_parent", default=NO_PARENT)
"""W3C's headers `traceparent` and `tracestate`; set only where requests are traced."""
