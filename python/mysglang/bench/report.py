"""The printed table and the JSON lines, in SGLang's layout: scripts that read those of SGLang read these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from mysglang.bench.metrics import ServingMetrics, Spread
from mysglang.bench.refused import Refused

WIDTH = 50


def title(text: str, rule: str = "=") -> str:
    """Returns `text` centred in a line of `rule` characters."""
    return f"{text:{rule}^{WIDTH}}"


def line(name: str, value: Any) -> str:
    """Formats one figure as a line of the report; floats get two digits."""
    return f"{name:<40} {value:<10.2f}" if isinstance(value, float) else f"{name:<40} {value!s:<10}"


def serving_table(
    metrics: ServingMetrics,
    *,
    backend: str,
    request_rate: float,
    max_concurrency: int | None,
    cache_report: bool,
) -> str:
    """Returns the table that bench_serving prints. `cache_report` adds what the prefix cache gave."""
    lines = [
        "\n" + title(" Serving Benchmark Result "),
        line("Backend:", backend),
        line("Traffic request rate:", str(request_rate)),
        line("Max request concurrency:", max_concurrency or "not set"),
        line("Successful requests:", metrics.completed),
        *([line("Failed requests:", metrics.failed)] if metrics.failed else []),
        line("Benchmark duration (s):", metrics.duration),
        line("Total input tokens:", metrics.total_input_tokens),
        line("Total input text tokens:", metrics.total_input_tokens),
        line("Total generated tokens:", metrics.total_output_tokens),
        *_known("Total generated tokens (retokenized):", metrics.total_output_tokens_retokenized),
        line("Request throughput (req/s):", metrics.request_throughput),
        line("Input token throughput (tok/s):", metrics.input_throughput),
        line("Output token throughput (tok/s):", metrics.output_throughput),
        line("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s),
        line("Peak concurrent requests:", metrics.max_concurrent_requests),
        line("Total token throughput (tok/s):", metrics.total_throughput),
        line("Concurrency:", metrics.concurrency),
        *_known("Accept length:", metrics.accept_length),
        *_known("Request goodput (req/s):", metrics.request_goodput),
        *_spread("End-to-End Latency", "E2E Latency", metrics.e2e_latency),
        *_spread("Time to First Token", "TTFT", metrics.ttft),
        *_spread("Time per Output Token (excl. 1st token)", "TPOT", metrics.tpot),
        *_spread("Inter-Token Latency", "ITL", metrics.itl),
        line("Max ITL (ms):", metrics.itl.max),
    ]
    if cache_report:
        lines += [
            title("Prefix Cache", "-"),
            line("Total prompt tokens:", metrics.total_input_tokens),
            line("Total cached tokens:", _or_unknown(metrics.total_cached_tokens)),
            line("Cache hit rate (%):", _or_unknown(metrics.cache_hit_rate_pct)),
        ]
    return "\n".join([*lines, "=" * WIDTH])


def offline_table(figures: Mapping[str, Any]) -> str:
    """Returns the table that bench_offline_throughput prints, out of its JSON object."""
    return "\n".join(
        [
            "\n" + title(" Offline Throughput Benchmark Result "),
            line("Backend:", figures["backend"]),
            line("Successful requests:", figures["successful_requests"]),
            line("Benchmark duration (s):", figures["total_latency"]),
            line("Total input tokens:", figures["total_input_tokens"]),
            line("Total generated tokens:", figures["total_output_tokens"]),
            line("Last generation throughput (tok/s):", figures["last_gen_throughput"]),
            line("Request throughput (req/s):", figures["request_throughput"]),
            line("Input token throughput (tok/s):", figures["input_throughput"]),
            line("Output token throughput (tok/s):", figures["output_throughput"]),
            line("Total token throughput (tok/s):", figures["total_throughput"]),
            "=" * WIDTH,
        ]
    )


def append_json(path: str, objects: Iterable[Mapping[str, Any]]) -> None:
    """Appends one line of JSON to the file for each object, so that results of several runs collect there. Raises
    Refused.
    """
    try:
        with Path(path).open("ab") as file:
            file.writelines(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in objects)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}.") from None


def _spread(heading: str, name: str, spread: Spread) -> list[str]:
    shown = [("Mean", spread.mean), ("Median", spread.median)]
    shown += [("P90", spread.p90), ("P95", spread.p95), ("P99", spread.p99)]
    return [title(heading, "-"), *(line(f"{which} {name} (ms):", value) for which, value in shown)]


def _known(name: str, value: float | int | None) -> list[str]:
    return [] if value is None else [line(name, value)]


def _or_unknown(value: float | int | None) -> float | int | str:
    return "not told" if value is None else value
