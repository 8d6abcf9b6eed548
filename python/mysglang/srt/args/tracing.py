"""Options of tracing: the OTLP endpoint that receives the spans of requests."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.observability import ObservabilityArgs

DEFAULT_ENDPOINT = "localhost:4317"
"""Endpoint of a collector on this machine, over gRPC."""

Protocol = Literal["grpc", "http/protobuf"]

_ENDPOINT = re.compile(r"((?P<scheme>https?|grpc)://)?(?P<host>[\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(?P<path>/\S*)?")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""OpenTelemetry's own variables, the first before the second."""
_PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp")


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """A collector."""

    protocol: Protocol
    address: str
    """HOST:PORT of one that is asked over gRPC, a URL with its path of one that is asked over HTTP."""
    secure: bool


def read_endpoint(text: str) -> OtlpTarget:
    """Reads the target of traces from its flag.

    A URL with a path means HTTP; all else means gRPC, unless OpenTelemetry's variables say HTTP. Raises ValueError.
    """
    found = _ENDPOINT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is neither HOST:PORT nor a URL")
    scheme, path = found["scheme"], found["path"] or ""
    asked = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "")
    secure = scheme == "https"
    if path.strip("/") or (asked == "http/protobuf" and scheme != "grpc"):
        address = text if scheme else f"http://{text}"
        return OtlpTarget("http/protobuf", address if path.strip("/") else address.rstrip("/") + "/v1/traces", secure)
    return OtlpTarget("grpc", text.removeprefix(f"{scheme}://").rstrip("/"), secure)


def target_of(args: ObservabilityArgs) -> OtlpTarget:
    """Returns the target of the traces that `args` configure. Raises ValueError."""
    given = args.otlp_traces_endpoint
    return read_endpoint(DEFAULT_ENDPOINT if given is None else given)


def complaint_about(args: ObservabilityArgs) -> str | None:
    """Returns an error message if the tracing options are invalid, or None."""
    for name in ("otlp_traces_endpoint", "otlp_service_name"):
        if getattr(args, name) is not None and not args.enable_trace:
            return f"--{name.replace('_', '-')} needs --enable-trace."
    if not args.enable_trace:
        return None
    try:
        target_of(args)
    except ValueError as error:
        return f"--otlp-traces-endpoint: {error}."
    if any(not _is_there(package) for package in _PACKAGES):
        return '--enable-trace needs OpenTelemetry: pip install "mysglang[trace]".'
    return None


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
