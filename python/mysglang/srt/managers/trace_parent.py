"""What a request's caller says of the trace that it belongs to, known without being handed from part to part."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

NO_PARENT: Mapping[str, str] = MappingProxyType({})

TRACE_PARENT: ContextVar[Mapping[str, str]] = ContextVar("trace_parent", default=NO_PARENT)
"""W3C's headers `traceparent` and `tracestate`; set only where requests are traced."""
