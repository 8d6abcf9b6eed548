"""Options for logs, metrics and other reports of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

LogLevel = Literal["critical", "error", "warning", "info", "debug"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityArgs:
    """Logs, metrics, traces, events, and the watchdog."""

    log_level: LogLevel = arg("info", help="Level of the log on stderr.")
    log_level_http: LogLevel | None = arg(
        None, help="Level of the HTTP access log. info logs every HTTP request. If unset, warning."
    )
    log_requests: bool = arg(
        False,
        help="Log each request when it arrives and when it ends: sizes, sampling parameters and times, but never the "
        "text of prompts and answers.",
    )
    enable_metrics: bool = arg(False, help="Serve Prometheus metrics at /metrics, without a key.")
    enable_mfu_metrics: bool = arg(
        False,
        help="Also estimate the floating point operations and the bytes of each step at /metrics. Needs --enable-"
        "metrics.",
    )
    enable_trace: bool = arg(False, help="Send a trace of each request to an OpenTelemetry collector.")
    otlp_traces_endpoint: str | None = arg(
        None, help="The collector: HOST:PORT for gRPC, or a URL with a path for HTTP. If unset, localhost:4317."
    )
    otlp_service_name: str | None = arg(
        None, help="Name of this server in traces. If unset, OTEL_SERVICE_NAME, or mysglang."
    )
    decode_log_interval: int = arg(
        40, at_least=1, help="Number of decode steps between two log lines about throughput."
    )
    kv_events_config: str | None = arg(
        None,
        help="JSON object that says where to publish which prefixes are cached, for routers; see docs/kv_events.md.",
    )
    crash_dump_folder: str | None = arg(
        None,
        help="Directory for a file with the requests of the last 5 minutes, written if the server dies. The file has "
        "lengths, times and parameters.",
    )
    crash_dump_contents: bool = arg(
        False, help="Let a crash dump also hold the prompts and answers. Needs --crash-dump-folder."
    )
    watchdog_timeout: float = arg(
        300.0,
        at_least=1,
        help="Seconds without a sign of life from one of its processes after which the server ends itself.",
    )
