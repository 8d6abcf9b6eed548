"""request_metrics: options -> who hears of a front's requests: nobody, a sheet of counters, a tracer, or both."""

from __future__ import annotations

from pathlib import Path

from mysglang.srt.args.tracing import target_of
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.managers.request_metrics import NoMetrics, RequestMetrics, SheetMetrics
from mysglang.srt.observability.instruments import FRONT
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.server_args import PortArgs, ServerArgs


def request_metrics(args: ServerArgs, ports: PortArgs, model: ModelConfig, index: int) -> RequestMetrics:
    """Of front `index`. What is counted is counted on one sheet by all fronts; traces each sends by itself."""
    metrics = _sheet(ports, index) if args.observability.enable_metrics else NoMetrics()
    return _traced(metrics, args, model) if args.observability.enable_trace else metrics


def _sheet(ports: PortArgs, index: int) -> RequestMetrics:
    """On a file beside the fronts' board."""
    path = Path(ports.board).with_suffix(".metrics")
    return SheetMetrics(Sheet.at(path, FRONT, len(ports.tokenizer_ipc_names), index))


def _traced(metrics: RequestMetrics, args: ServerArgs, model: ModelConfig) -> RequestMetrics:
    # OpenTelemetry is loaded where somebody asked for it only.
    from mysglang.srt.managers.request_traces import TracedMetrics
    from mysglang.srt.observability.tracing import Spans, otlp_exporter

    observability = args.observability
    target = target_of(observability)
    exporter = otlp_exporter(target.protocol, target.address, secure=target.secure)
    spans = Spans(exporter, observability.otlp_service_name)
    name = args.serving.served_model_name or args.model.model_path or ""
    return TracedMetrics(metrics, spans, name, is_embedding=model.pooling is not None)
