"""Spans on their way to a collector. Knows OpenTelemetry and OTLP, and no request.

Imported only if traces are enabled: a server without them need not have the library.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mysglang.srt.utils.version import __version__

Attribute = str | bool | int | float | Sequence[str]

EXPORT_S = 2.0
"""Seconds in which a collector may take a batch of spans, retries included; the server's end waits no longer."""

DELAY_MS = 1000
"""Longest time in milliseconds that a span waits for others before it is sent."""

UNNAMED = "unknown_service"
"""OpenTelemetry's name for a service without a name."""

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Part:
    """A stage of a request. Times in nanoseconds since 1970."""

    name: str
    begun: int
    ended: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A finished request."""

    name: str
    begun: int
    ended: int
    carrier: Mapping[str, str]
    """W3C's `traceparent` and `tracestate`, as they came with the request, if they did."""
    attributes: Mapping[str, Attribute]
    parts: Sequence[Part] = ()
    error: str | None = None
    """Why it came to no good end."""
    events: Mapping[str, int] = field(default_factory=dict)


class Spans:
    """Makes spans of finished requests, and hands them to `exporter` from a thread of its own."""

    def __init__(self, exporter: SpanExporter, service_name: str | None) -> None:
        """`service_name`: None for OTEL_SERVICE_NAME, or mysglang if that is not set."""
        named = Resource.create()
        if service_name is not None or str(named.attributes[SERVICE_NAME]).startswith(UNNAMED):
            named = named.merge(Resource({SERVICE_NAME: service_name or "mysglang"}))
        delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else DELAY_MS
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        self._tracer = self._provider.get_tracer("mysglang", __version__)

    def add(self, whole: Whole) -> None:
        """Adds a span for the request, as a child of the caller's span if there is one, and a child span for each part.
        The caller's flags, or OTEL_TRACES_SAMPLER, decide if they are kept.
        """
        parent: Context = _PROPAGATOR.extract(whole.carrier)
        span = self._tracer.start_span(
            whole.name, parent, SpanKind.SERVER, attributes=whole.attributes, start_time=whole.begun
        )
        if span.is_recording():
            inside = set_span_in_context(span, parent)
            for part in whole.parts:
                self._tracer.start_span(part.name, inside, start_time=part.begun).end(part.ended)
            for name, at in whole.events.items():
                span.add_event(name, timestamp=at)
            if whole.error is not None:
                span.set_status(Status(StatusCode.ERROR, whole.error))
        span.end(whole.ended)

    def close(self) -> None:
        """Sends the spans that are still buffered, and stops the exporter."""
        with contextlib.suppress(Exception):  # the collector's trouble is no trouble of this server's end
            self._provider.shutdown()


def otlp_exporter(protocol: str, address: str, *, secure: bool) -> SpanExporter:
    """Returns an exporter that sends OTLP over `grpc` to a HOST:PORT, or over `http/protobuf` to a URL. Headers and
    certificates are set by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE).
    """
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc(address, insecure=not secure, timeout=EXPORT_S)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp(address, timeout=EXPORT_S)
