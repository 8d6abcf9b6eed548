"""request_metrics: chooses the receivers of a front's counts by the options: none, a sheet of counters, a tracer, or
both.
"""

from __future__ import annotations

from pathlib import Path

from mysglang.srt.args.tracing import target_of
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.managers.request_metrics import NoMetrics, RequestMetrics, SheetMetrics, WatchedMetrics
from mysglang.srt.observability.instruments import FRONT, WATCHED_FRONT
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.server_args import PortArgs, ServerArgs


def request_metrics(args: ServerArgs, ports: PortArgs, model: ModelConfig, index: int) -> RequestMetrics:
    """Returns the metrics of front `index`. All fronts count in one shared file; each sends its own traces."""
    metrics = _counted(args, ports, index)
    return _traced(metrics, args, model) if args.observability.enable_trace else metrics


def _counted(args: ServerArgs, ports: PortArgs, index: int) -> RequestMetrics:
    """Returns the counters, which count always with --enable-metrics, and otherwise while the playground's figures are
    watched.

    The counters are in a file beside the fronts' board.
    """
    path, num_fronts = Path(ports.board).with_suffix(".metrics"), len(ports.tokenizer_ipc_names)
    if args.observability.enable_metrics:
        return SheetMetrics(Sheet.at(path, FRONT, num_fronts, index))
    if args.serving.disable_playground:
        return NoMetrics()
    return WatchedMetrics(Sheet.at(path, WATCHED_FRONT, num_fronts, index))


def _traced(metrics: RequestMetrics, args: ServerArgs, model: ModelConfig) -> RequestMetrics:
    # OpenTelemetry is loaded only if traces are enabled.
    from mysglang.srt.managers.request_traces import TracedMetrics
    from mysglang.srt.observability.tracing import Spans, otlp_exporter

    observability = args.observability
    target = target_of(observability)
    exporter = otlp_exporter(target.protocol, target.address, secure=target.secure)
    spans = Spans(exporter, observability.otlp_service_name)
    name = args.serving.served_model_name or args.model.model_path or ""
    return TracedMetrics(metrics, spans, name, is_embedding=model.pooling is not None)
