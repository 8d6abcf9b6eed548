"""TraceParents: the middleware that notes to which trace a request belongs. There with --enable-trace only."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from mysglang.srt.entrypoints.context_note import ContextNote
from mysglang.srt.managers.trace_parent import TRACE_PARENT

HEADERS = (b"traceparent", b"tracestate")


class TraceParents(ContextNote[Mapping[str, str]]):
    """Middleware that makes the trace of the request's caller available to all code that works for the request."""

    variable = TRACE_PARENT

    def note(self, scope: Scope) -> Mapping[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
