"""Computes the figures of a serving benchmark from records of requests, as SGLang defines and names them.

TTFT: sent until the first token. TPOT: (last token - first token) / (tokens - 1), by request. ITL: between tokens,
over all requests. E2E: sent until the answer is whole. Seconds in, milliseconds out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from mysglang.bench.records import RequestRecord
from mysglang.bench.vocabulary import Vocabulary

MS = 1e3


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of a time, in milliseconds; all 0 if it was never measured."""

    mean: float
    median: float
    std: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ms = np.asarray(seconds if len(seconds) else [0.0]) * MS
        median, p90, p95, p99 = np.percentile(ms, [50, 90, 95, 99]).tolist()
        return cls(float(ms.mean()), median, float(ms.std()), p90, p95, p99, float(ms.max()))

    def named(self, what: str) -> dict[str, float]:
        """Returns {mean_WHAT_ms: …, …}, the keys and values for the JSON output."""
        return {f"{field.name}_{what}_ms": getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """The figures of one run. Rates are per second."""

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    total_output_tokens_retokenized: int | None
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    concurrency: float
    """Requests open on average."""
    e2e_latency: Spread
    ttft: Spread
    tpot: Spread
    itl: Spread
    total_cached_tokens: int | None
    request_goodput: float | None
    """Requests that met all objectives; None without objectives."""
    accept_length: float | None = None
    """Tokens that a decoding request got in a step, by the server's own account since its start; None: it tries no
    drafts.
    """

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration

    @property
    def input_throughput(self) -> float:
        return self.total_input_tokens / self.duration

    @property
    def output_throughput(self) -> float:
        return self.total_output_tokens / self.duration

    @property
    def total_throughput(self) -> float:
        return self.input_throughput + self.output_throughput

    @property
    def cache_hit_rate_pct(self) -> float | None:
        if self.total_cached_tokens is None:
            return None
        return 100 * self.total_cached_tokens / max(1, self.total_input_tokens)

    def flat(self) -> dict[str, float | int | None]:
        """Returns all metrics under SGLang's JSON keys."""
        return {
            "duration": self.duration,
            "completed": self.completed,
            "failed": self.failed,
            "total_input_tokens": self.total_input_tokens,
            "total_input_text_tokens": self.total_input_tokens,
            "total_input_vision_tokens": 0,
            "total_output_tokens": self.total_output_tokens,
            "total_output_tokens_retokenized": self.total_output_tokens_retokenized,
            "request_throughput": self.request_throughput,
            "input_throughput": self.input_throughput,
            "output_throughput": self.output_throughput,
            "total_throughput": self.total_throughput,
            **self.e2e_latency.named("e2e_latency"),
            **self.ttft.named("ttft"),
            **self.tpot.named("tpot"),
            **self.itl.named("itl"),
            "concurrency": self.concurrency,
            "accept_length": self.accept_length,
            "max_output_tokens_per_s": self.max_output_tokens_per_s,
            "max_concurrent_requests": self.max_concurrent_requests,
            "total_prompt_tokens": self.total_input_tokens,
            "total_cached_tokens": self.total_cached_tokens,
            "cache_hit_rate_pct": self.cache_hit_rate_pct,
            "request_goodput": self.request_goodput,
        }


def measure(
    records: Sequence[RequestRecord],
    start: float,
    duration: float,
    vocabulary: Vocabulary,
    objectives: Mapping[str, float] | None = None,
) -> ServingMetrics:
    """Computes the metrics of all requests that succeeded.

    `objectives`: limits in milliseconds for ttft, tpot or e2el, by which goodput counts.
    """
    good = [record for record in records if record.ok]
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    return ServingMetrics(
        duration=duration,
        completed=len(good),
        failed=len(records) - len(good),
        total_input_tokens=sum(record.prompt_tokens for record in good),
        total_output_tokens=sum(record.output_tokens for record in good),
        total_output_tokens_retokenized=vocabulary.count_tokens([record.text for record in good]),
        max_output_tokens_per_s=max(tokens_by_second(good, start), default=0.0),
        max_concurrent_requests=_most_at_once(good),
        concurrency=sum(record.latency for record in good) / duration,
        e2e_latency=Spread.of([record.latency for record in good]),
        ttft=Spread.of([record.ttft for record in good]),
        tpot=Spread.of([tpot for record in good if (tpot := record.tpot) is not None]),
        itl=Spread.of([gap for record in good for gap in record.itls()]),
        total_cached_tokens=sum(cached) if cached else None,
        request_goodput=_met(good, objectives) / duration if objectives else None,
    )


def tokens_by_second(records: Sequence[RequestRecord], start: float) -> list[float]:
    """Returns how many tokens came in each second of the run. Pieces that count as one token are scaled to the answer's
    tokens.
    """
    arrivals = [(at - start, count * _scale(record)) for record in records for at, count in record.arrivals]
    if not arrivals:
        return []
    seconds, counts = np.array(arrivals).T
    by_second: list[float] = np.bincount(seconds.astype(np.int64), weights=counts).tolist()
    return by_second


def _scale(record: RequestRecord) -> float:
    return record.output_tokens / max(1, sum(count for _, count in record.arrivals))


def _most_at_once(records: Sequence[RequestRecord]) -> int:
    # Ends sort before starts of the same time.
    events = sorted([(record.start, 1) for record in records] + [(record.end, -1) for record in records])
    return int(np.cumsum([change for _, change in events]).max()) if events else 0


def _met(records: Sequence[RequestRecord], objectives: Mapping[str, float]) -> int:
    def times(record: RequestRecord) -> dict[str, float]:
        return {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.latency}

    return sum(all(took[name] * MS <= limit for name, limit in objectives.items()) for took in map(times, records))
