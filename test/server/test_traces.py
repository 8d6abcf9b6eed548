"""A real server that sends its traces to a collector of the test's: over gRPC and over HTTP, with a caller's trace."""

from __future__ import annotations

import gzip
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.warm_start import WarmServer
from mysglang.srt.utils.exit_codes import ExitCode

TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE_PARENT = {"traceparent": f"00-{TRACE}-{CALLER_SPAN}-01"}
STAGES = ["decode", "prefill", "queue", "tokenize"]
QUIET = ("--log-level", "error")


class Collector:
    """The spans that arrived."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.services: set[str] = set()
        self._lock = threading.Lock()

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_spans:
                names = [pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name"]
                self.services.update(names)
                for scope in resource.scope_spans:
                    self._spans.extend(scope.spans)

    def now(self, trace_id: str) -> list[Span]:
        """The spans of a trace that have come."""
        with self._lock:
            return [span for span in self._spans if span.trace_id.hex() == trace_id]

    def trace(self, trace_id: str, count: int) -> list[Span]:
        """All, once there are `count` of them."""
        wait_until(lambda: len(self.now(trace_id)) >= count, lambda: self.now(trace_id))
        found = self.now(trace_id)
        assert len(found) == count
        return found


@contextmanager
def over_grpc(collector: Collector) -> Iterator[str]:
    class Service(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def over_http(collector: Collector) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        finally:
            server.shutdown()


@pytest.mark.parametrize("listen", [over_grpc, over_http])
def test_a_request_and_its_stages_reach_the_collector(listen: Callable[[Collector], object]) -> None:
    collector = Collector()
    with listen(collector) as endpoint:  # type: ignore[attr-defined]
        options = ("--enable-trace", "--otlp-traces-endpoint", endpoint, "--otlp-service-name", "under-test")
        with WarmServer(*QUIET, *options) as server:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "seed": 3}
            answer = httpx.post(
                f"{server.url}/v1/chat/completions", json=body, headers=TRACE_PARENT, timeout=PATIENCE_S
            )
            assert answer.status_code == 200
            spans = {span.name: span for span in collector.trace(TRACE, 5)}
            whole = spans.pop("text_completion mysglang-tiny")
            assert whole.parent_span_id.hex() == CALLER_SPAN
            assert sorted(spans) == STAGES
            assert all(span.parent_span_id == whole.span_id for span in spans.values())
            for span in spans.values():
                assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
                assert span.end_time_unix_nano <= whole.end_time_unix_nano
            said = {pair.key: pair.value for pair in whole.attributes}
            usage = answer.json()["usage"]
            assert said["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
            assert said["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"]
            assert said["gen_ai.request.max_tokens"].int_value == 5
            assert said["gen_ai.request.seed"].int_value == 3
            # Requests without a traced caller begin traces: the warm-up, and this one.
            httpx.post(
                f"{server.url}/generate",
                json={"text": "a", "sampling_params": {"max_new_tokens": 2}},
                timeout=PATIENCE_S,
            )
        assert collector.services == {"under-test"}


def ask_for_traces(url: str, first: int, end: int) -> None:
    """Traces of these numbers, on a connection each, which the fronts share between them."""
    body = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
    for number in range(first, end):
        header = {"traceparent": f"00-{number:032x}-{CALLER_SPAN}-01"}
        assert httpx.post(f"{url}/generate", json=body, headers=header, timeout=PATIENCE_S).status_code == 200


def test_every_front_traces_its_requests_and_keeps_no_spans_at_the_end() -> None:
    """Spans of the last second wait for others, which do not come any more."""
    collector = Collector()
    with over_http(collector) as endpoint:
        options = ("--enable-trace", "--otlp-traces-endpoint", endpoint, "--tokenizer-worker-num", "3")
        with WarmServer(*QUIET, *options) as server:
            ask_for_traces(server.url, 1, 12)
            for number in range(1, 12):
                collector.trace(f"{number:032x}", 5)
            ask_for_traces(server.url, 12, 24)
            server.send(signal.SIGTERM)
            assert server.wait() == ExitCode.DONE
        assert [len(collector.now(f"{number:032x}")) for number in range(1, 24)] == [5] * 23


def test_a_collector_that_is_not_there_hurts_nobody() -> None:
    options = ("--enable-trace", "--otlp-traces-endpoint", "127.0.0.1:9")
    with WarmServer("--log-level", "critical", *options) as server:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
        assert httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S).status_code == 200
        server.send(signal.SIGTERM)
        assert server.wait() == ExitCode.DONE
