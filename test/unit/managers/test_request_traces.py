"""The trace of an answer, by a clock that the test moves, as an exporter of OpenTelemetry's own gets it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mysglang.srt.managers.caller import TRACE_PARENT
from mysglang.srt.managers.request_metrics import NoMetrics, SheetMetrics
from mysglang.srt.managers.request_traces import GIVEN_UP, REFUSED, TracedMetrics
from mysglang.srt.messages.outputs import Abort, Length, RequestTimes, Stop
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.messages.wire_names import wire_rid
from mysglang.srt.observability import instruments as told
from mysglang.srt.observability.sheet import Sheet
from mysglang.srt.observability.tracing import Spans
from mysglang.srt.sampling.sampling_params import SamplingParams

RID = wire_rid("my-request", 7, 0)
TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER_SPAN}-01", "tracestate": "vendor=1"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER_SPAN}-00"}


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Traced:
    clock: Clock = field(default_factory=Clock)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.spans = Spans(self.exporter, "my service")
        self.metrics = TracedMetrics(NoMetrics(), self.spans, "tiny", clock=self.clock)

    def collected(self) -> dict[str, ReadableSpan]:
        """Every span by its name, once all are sent."""
        self.metrics.close()
        spans = self.exporter.get_finished_spans()
        found = {span.name: span for span in spans}
        assert len(found) == len(spans)
        return found


def request(**params: object) -> TokenizedGenerateReqInput:
    return TokenizedGenerateReqInput(
        rid=RID, input_ids=pack_ids([1, 2]), sampling_params=SamplingParams(**params), stream=True, extra_key=""
    )


@contextmanager
def called_by(carrier: Mapping[str, str]) -> Iterator[None]:
    token = TRACE_PARENT.set(carrier)
    try:
        yield
    finally:
        TRACE_PARENT.reset(token)


def answer(traced: Traced) -> None:
    """Opened at 100, sent at 101, 10 prompt tokens of which 4 were cached, 3 tokens, over at 110."""
    metrics, clock = traced.metrics, traced.clock
    metrics.opened(RID)
    clock.now = 101.0
    metrics.sent(RID, request(max_new_tokens=3, temperature=0.5, top_k=4, sampling_seed=9, stop=["x"]))
    clock.now = 107.0
    metrics.grew(RID, 10, 1, 4)
    clock.now = 110.0
    metrics.grew(RID, 10, 3, 4)
    times = RequestTimes(arrived=101.5, started=103.0, first_token=106.0, ended=109.0)
    metrics.ended(RID, Length(3), times)
    metrics.ended(RID, None)


def test_an_answer_and_its_stages() -> None:
    traced = Traced()
    before = time.time_ns()
    answer(traced)
    spans = traced.collected()
    whole = spans.pop("text_completion tiny")
    assert sorted(spans) == ["decode", "prefill", "queue", "tokenize"]
    assert whole.kind is SpanKind.SERVER and whole.parent is None
    assert whole.resource.attributes["service.name"] == "my service"
    assert whole.status.status_code is StatusCode.UNSET
    begun, ended = whole.start_time, whole.end_time
    assert begun is not None and ended is not None
    assert ended - begun == pytest.approx(10e9, abs=1e3)
    assert before <= ended <= time.time_ns()

    def seconds(name: str) -> tuple[float, float]:
        start, end = spans[name].start_time, spans[name].end_time
        assert start is not None and end is not None
        return round((start - begun) / 1e9, 3), round((end - begun) / 1e9, 3)

    assert seconds("tokenize") == (0, 1)
    assert seconds("queue") == (1.5, 3)
    assert seconds("prefill") == (3, 6)
    assert seconds("decode") == (6, 9)
    for span in spans.values():
        assert span.parent is not None and span.parent.span_id == whole.context.span_id
        assert span.context.trace_id == whole.context.trace_id
    assert [(event.name, round((event.timestamp - begun) / 1e9, 3)) for event in whole.events] == [
        ("gen_ai.first_chunk", 7)
    ]
    assert dict(whole.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "mysglang",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "my-request",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 4,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 9,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }


def test_the_callers_trace_goes_on() -> None:
    traced = Traced()
    with called_by(SAMPLED):
        answer(traced)
    spans = traced.collected()
    whole = spans["text_completion tiny"]
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert whole.parent is not None and f"{whole.parent.span_id:016x}" == CALLER_SPAN
    assert whole.context.trace_state.get("vendor") == "1"
    assert all(f"{span.context.trace_id:032x}" == TRACE for span in spans.values())


def test_what_its_caller_does_not_keep_is_not_kept() -> None:
    traced = Traced()
    with called_by(NOT_SAMPLED):
        answer(traced)
    assert traced.collected() == {}


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", f"00-{'0' * 32}-{CALLER_SPAN}-01", "\xff" * 400])
def test_a_broken_header_begins_a_trace(header: str) -> None:
    traced = Traced()
    with called_by({"traceparent": header}):
        answer(traced)
    assert traced.collected()["text_completion tiny"].parent is None


def test_a_stage_that_was_not_come_out_of_ends_with_the_request() -> None:
    traced = Traced()
    traced.metrics.opened(RID)
    traced.metrics.sent(RID, request())
    traced.clock.now = 105.0
    gone = Abort("out of time", status=503)
    traced.metrics.ended(RID, gone, RequestTimes(arrived=101.0, started=0.0, first_token=0.0, ended=104.0))
    spans = traced.collected()
    whole = spans.pop("text_completion tiny")
    assert sorted(spans) == ["queue", "tokenize"]
    assert whole.status.status_code is StatusCode.ERROR and whole.status.description == "out of time"
    assert (whole.attributes or {})["gen_ai.response.finish_reasons"] == ("abort",)
    queue = spans["queue"]
    assert queue.start_time is not None and queue.end_time is not None
    assert queue.end_time - queue.start_time == pytest.approx(3e9, abs=1e3)


@pytest.mark.parametrize(("sent", "why"), [(False, REFUSED), (True, GIVEN_UP)])
def test_who_did_not_stay(sent: bool, why: str) -> None:
    traced = Traced()
    traced.metrics.opened(RID)
    if sent:
        traced.metrics.sent(RID, request())
    traced.metrics.ended(RID, None)
    spans = traced.collected()
    assert spans["text_completion tiny"].status.description == why
    assert ("tokenize" in spans) is sent


def test_vectors_have_no_parameters_of_generation() -> None:
    exporter = InMemorySpanExporter()
    metrics = TracedMetrics(NoMetrics(), Spans(exporter, None), "bert", is_embedding=True)
    metrics.opened(RID)
    metrics.sent(RID, request())
    metrics.grew(RID, 5, 0, 0)
    now = 1.0
    metrics.ended(RID, Stop(), RequestTimes(now, now, now, now))
    metrics.close()
    whole = next(span for span in exporter.get_finished_spans() if span.name == "embeddings bert")
    attributes = whole.attributes or {}
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert not [name for name in attributes if name.startswith("gen_ai.request.") and name != "gen_ai.request.model"]
    assert whole.resource.attributes["service.name"] == "mysglang"


def test_what_is_traced_is_counted_too() -> None:
    sheet = SheetMetrics(Sheet.alone(told.FRONT))
    metrics = TracedMetrics(sheet, Spans(InMemorySpanExporter(), None), "tiny")
    metrics.opened(RID)
    metrics.sent(RID, request())
    metrics.grew(RID, 10, 2, 4)
    metrics.ended(RID, Stop())
    assert metrics.total_row() == sheet.total_row()
    assert told.FRONT.part(metrics.total_row(), told.NUM_REQUESTS) == [1]
    metrics.close()
