"""TracedMetrics: a trace of every answer, made from the front's events and from the scheduler's times at its end.

    request                     opened ............................................. ended     at the front
      tokenize                  opened … sent
      queue                              arrived … started                                     at the scheduler
      prefill                                      started … first token
      decode                                                 first token … ended

Names and attributes follow OpenTelemetry's conventions for generative AI (gen_ai.*), as far as they have some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mysglang.srt.managers.caller import TRACE_PARENT
from mysglang.srt.managers.request_metrics import RequestMetrics
from mysglang.srt.messages.outputs import Abort, FinishReason, Length, RequestTimes
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.messages.wire_names import rid_of
from mysglang.srt.observability.tracing import Attribute, Part, Whole
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.sampling_params import SamplingParams

GIVEN_UP = "The client left before the end."
REFUSED = "It was refused or given up before it was sent to the scheduler."
PROVIDER = "mysglang"


class SpanSink(Protocol):
    """Receives the spans of finished requests (`observability.tracing.Spans`)."""

    def add(self, whole: Whole) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Traced:
    """An open answer. Times by the clock."""

    carrier: Mapping[str, str]
    opened: float
    sent: float = 0.0
    first_chunk: float = 0.0
    attributes: dict[str, Attribute] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class TracedMetrics:
    """Counts as `metrics` does, and hands a trace of each answer to `spans`."""

    def __init__(
        self,
        metrics: RequestMetrics,
        spans: SpanSink,
        model: str,
        *,
        is_embedding: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: the clock of `RequestTimes`. `model`: the name of the served model."""
        self._metrics = metrics
        self._spans = spans
        self._model = model
        self._operation = "embeddings" if is_embedding else "text_completion"
        self._clock = clock
        self._open: dict[str, _Traced] = {}

    def opened(self, rid: str) -> bool:
        self._metrics.opened(rid)
        self._open[rid] = _Traced(TRACE_PARENT.get(), self._clock())
        return True

    def sent(self, rid: str, request: TokenizedGenerateReqInput) -> None:
        self._metrics.sent(rid, request)
        traced = self._open[rid]
        traced.sent = self._clock()
        traced.attributes = {} if self._operation == "embeddings" else _asked(request.sampling_params)

    def grew(self, rid: str, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        self._metrics.grew(rid, prompt_tokens, completion_tokens, cached_tokens)
        traced = self._open[rid]
        if not traced.first_chunk:
            traced.first_chunk = self._clock()
        traced.prompt_tokens, traced.completion_tokens = prompt_tokens, completion_tokens
        traced.cached_tokens = cached_tokens

    def ended(self, rid: str, reason: FinishReason | None, times: RequestTimes | None = None) -> None:
        self._metrics.ended(rid, reason, times)
        traced = self._open.pop(rid, None)
        if traced is not None:
            self._spans.add(self._whole(rid, traced, reason, times))

    def asked(self, path: str, routing_key: str) -> None:
        self._metrics.asked(path, routing_key)

    def answered(self, path: str, routing_key: str, status: int | None) -> None:
        self._metrics.answered(path, routing_key, status)

    def watch(self) -> None:
        self._metrics.watch()

    def total_row(self) -> Sequence[float]:
        return self._metrics.total_row()

    def close(self) -> None:
        self._spans.close()

    def _whole(self, rid: str, traced: _Traced, reason: FinishReason | None, times: RequestTimes | None) -> Whole:
        ended = self._clock()
        # Time of the clock as nanoseconds since 1970; the two may drift apart while no request is open.
        offset = time.time_ns() - round(ended * 1e9)

        def at(moment: float) -> int:
            return round(moment * 1e9) + offset

        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.id": rid_of(rid),
            **traced.attributes,
        }
        if traced.prompt_tokens:
            attributes |= {
                "gen_ai.usage.input_tokens": traced.prompt_tokens,
                "gen_ai.usage.output_tokens": traced.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": traced.cached_tokens,
            }
        if reason is not None:
            attributes["gen_ai.response.finish_reasons"] = [_name(reason)]
        return Whole(
            name=f"{self._operation} {self._model}",
            begun=at(traced.opened),
            ended=at(ended),
            carrier=traced.carrier,
            attributes=attributes,
            parts=[Part(name, at(begun), at(end)) for name, begun, end in _stages(traced, times) if begun and end],
            error=_error(traced, reason),
            events={"gen_ai.first_chunk": at(traced.first_chunk)} if traced.first_chunk else {},
        )


def _stages(traced: _Traced, times: RequestTimes | None) -> list[tuple[str, float, float]]:
    """Returns (name, begin, end) of each stage; 0 for a stage that was not reached. A stage without an end ends with
    the request.
    """
    stages = [("tokenize", traced.opened, traced.sent)]
    if times is not None:
        stages += [
            ("queue", times.arrived, times.started or times.ended),
            ("prefill", times.started, times.first_token or times.ended),
            ("decode", times.first_token, times.ended),
        ]
    return stages


def _asked(params: SamplingParams) -> dict[str, Attribute]:
    asked: dict[str, Attribute | None] = {
        "gen_ai.request.max_tokens": params.max_new_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": None if params.top_k == TOP_K_ALL else params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.seed": params.sampling_seed,
        "gen_ai.request.stop_sequences": params.stop or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _name(reason: FinishReason) -> str:
    match reason:
        case Abort():
            return "abort"
        case Length():
            return "length"
        case _:
            return "stop"


def _error(traced: _Traced, reason: FinishReason | None) -> str | None:
    if isinstance(reason, Abort):
        return reason.message
    if reason is None:
        return GIVEN_UP if traced.sent else REFUSED
    return None
