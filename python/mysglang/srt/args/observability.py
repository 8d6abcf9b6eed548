"""What the server tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

LogLevel = Literal["critical", "error", "warning", "info", "debug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityArgs:
    """Logs, and the watch over the processes."""

    log_level: LogLevel = arg("info", help="Level of the log on stderr.")
    log_level_http: LogLevel | None = arg(None, help="Level of the HTTP access log; warning if unset.")
    log_requests: bool = arg(False, help="Log each request when it comes and when it ends.")
    enable_metrics: bool = arg(False, help="Count requests and tokens, and report them to Prometheus at /metrics.")
    enable_mfu_metrics: bool = arg(
        False, help="Estimate what steps compute, read and write, and report it at /metrics. Needs --enable-metrics."
    )
    enable_trace: bool = arg(False, help="Send a trace of each request to an OpenTelemetry collector.")
    otlp_traces_endpoint: str | None = arg(
        None, help="The collector: HOST:PORT (gRPC), or a URL with a path (HTTP). localhost:4317 if unset."
    )
    otlp_service_name: str | None = arg(
        None, help="What traces call this server; OTEL_SERVICE_NAME if unset, and mysglang without that."
    )
    decode_log_interval: int = arg(40, at_least=1, help="Decode steps between two lines about throughput.")
    kv_events_config: str | None = arg(
        None, help="JSON: where to publish which prefixes are cached, for routers; docs/kv_events.md tells the fields."
    )
    watchdog_timeout: float = arg(
        300.0, at_least=1, help="Seconds without a sign of life from a process until the server ends itself."
    )
